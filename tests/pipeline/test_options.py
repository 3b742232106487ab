"""Options: what is accepted, what is refused and what a change leaves as it was."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from zephon.errors import ConfigError
from zephon.pipeline.options import Options


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"runner": "thread"}, "options(runner='thread') is not one of 'threads', 'process', 'inline'"),
        ({"lanes_allow": "all"}, "options(lanes_allow='all') is not one of 'whole', 'shared', 'uneven'"),
        ({"mapping_strategy": "round_robin"}, "options(mapping_strategy='round_robin') is not one of 'contiguous'"),
        ({"auto_validation": "on"}, "options(auto_validation='on') is not one of 'strict', 'warn', 'off'"),
        ({"on_error": {"d": "skip"}}, "options(on_error='skip') is not one of 'raise', 'quarantine'"),
        ({"prefetch_bytes": 0}, "options(prefetch_bytes=0) is below 1"),
        ({"dp_degree": 2.0}, "options(dp_degree=2.0) is not a whole number"),
        ({"max_workers": True}, "options(max_workers=True) is not a whole number"),
        ({"isolated": "yes"}, "options(isolated='yes') is not True or False"),
        ({"run_id": 7}, "options(run_id=7) is not text"),
        ({"dp_degree": 2, "dp_group_id": 2}, "dp_group_id=2 with dp_degree=2"),
        ({"deterministic": False}, "deterministic=False"),
        ({"io_options": {"cash": {}}}, "did you mean 'cache'"),
    ],
)
def test_a_value_that_cannot_work_is_refused_with_its_option(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Options(**options)
    assert says in str(caught.value)


def test_none_stands_for_the_default_where_there_is_no_other_value_for_it() -> None:
    given = {"max_workers": None, "flush_every_k_chunks": None, "canonical_replicas": None, "global_batch_size": None}
    assert Options(**given) == Options()
    with pytest.raises(ConfigError, match="prefetch_batches=None"):
        Options(prefetch_batches=None)  # type: ignore[arg-type]


def test_a_change_leaves_the_other_options_and_the_old_value_as_they_were() -> None:
    before = Options(max_workers=3)
    after = before.updated({"dp_degree": 4, "dp_group_id": 3})
    assert (before, after) == (Options(max_workers=3), Options(max_workers=3, dp_degree=4, dp_group_id=3))
    with pytest.raises(ConfigError, match="options has no option 'dp_dgree'\n  fix: did you mean 'dp_degree'"):
        before.updated({"dp_dgree": 4})
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.max_workers = 4  # type: ignore[misc]
