from __future__ import annotations

from typing import Any

import pytest

from tests.integrations.recipes import build
from zephon.errors import ConfigError, StateError
from zephon.integrations.torchtitan.checks import check_saved, check_saving, check_validation

SAVING: dict[str, Any] = {"enabled": True, "last_save_model_only": False, "excluded": [], "fork": False}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"global_batch_size": -1}, "global_batch_size -1 follows the number of GPUs"),
        ({"global_batch_size": 12}, "not a multiple of --dataloader.lanes 8"),
        ({"replicas": 3}, "1, 2, 4, 8 replicas"),
        ({"replicas": 16}, "1, 2, 4, 8 replicas"),
        ({"local": 3}, "1, 2, 4, 8, 16"),
        ({"local": 0}, "local_batch_size 0"),
    ],
)
def test_numbers_that_would_change_the_data_are_refused_in_torchtitans_words(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build(**changed)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"enabled": False}, "--checkpoint.enable is off"),
        ({"last_save_model_only": True}, "--checkpoint.no-last-save-model-only"),
        ({"excluded": ["dataloader"]}, "--dataloader.fork"),
        ({"fork": True}, "without --checkpoint.exclude_from_loading"),
    ],
)
def test_checkpoints_that_would_lose_the_datas_place_are_refused(changed: dict[str, Any], says: str) -> None:
    check_saving(**SAVING)
    check_saving(**{**SAVING, "excluded": ["dataloader"], "fork": True})
    with pytest.raises(ConfigError, match=says):
        check_saving(**{**SAVING, **changed})


def test_validation_by_a_number_of_batches_is_refused() -> None:
    check_validation(steps=-1)
    with pytest.raises(ConfigError, match=r"--validator\.steps -1"):
        check_validation(steps=10)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (["model.weight"], "holds no loader state"),
        (["dataloader.dp_rank_0", "dataloader.world_size"], "another loader: dp_rank_0"),
        ([f"dataloader.lane.{i}" for i in range(4)], "--dataloader.lanes 4"),
    ],
)
def test_a_checkpoint_of_other_data_is_said_before_it_is_loaded(keys: list[str], says: str) -> None:
    check_saved([f"dataloader.lane.{i}" for i in range(8)], lanes=8, where="step-10")
    with pytest.raises(StateError, match=says):
        check_saved(keys, lanes=8, where="step-10")
