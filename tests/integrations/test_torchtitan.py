from __future__ import annotations

from typing import Any

import pytest
import torch

from zephon import Dataset, InMemoryShard, Pipeline, StaticMixtureWorkSource
from zephon.errors import ConfigError
from zephon.integrations.torchtitan import TitanFeed, dataloader_class

SEQ = 16


def build(dp_degree: int, dp_group_id: int, microbatch_size: int) -> Pipeline:
    rows = [{"text": f"document {i} " * (1 + i % 5)} for i in range(200)]
    source = StaticMixtureWorkSource(
        [Dataset.from_dict("d", {"s": InMemoryShard(rows)})], chunk_bytes=256, exhausted_policy="repeat"
    )
    return (
        Pipeline(source)
        .options(canonical_replicas=4, global_batch_size=8, dp_degree=dp_degree, dp_group_id=dp_group_id)
        .tokenize(tokenizer_id="bytes", field="text")
        .pack_flat(SEQ + 1, algorithm="wrap")
        .shuffle(8)
        .batch(microbatch_size)
    )


def feed(dp: int = 1, rank: int = 0, **changed: Any) -> TitanFeed:
    numbers = {"local_batch_size": 2, "global_batch_size": 8, "seq_len": SEQ, "snapshot_every_n_steps": 1}
    return TitanFeed(build, dp_world_size=dp, dp_rank=rank, **{**numbers, **changed})


def take(one: TitanFeed, count: int) -> list[tuple[dict[str, Any], Any]]:
    batches = iter(one)
    return [next(batches) for _ in range(count)]


def test_it_yields_inputs_positions_and_labels_of_the_training_length() -> None:
    ((inputs, labels),) = take(feed(), 1)
    assert inputs["input"].shape == inputs["positions"].shape == labels.shape == (2, SEQ)
    assert torch.equal(inputs["input"][:, 1:], labels[:, :-1])
    assert inputs["positions"][:, 0].eq(0).all()


def test_a_change_of_data_parallel_size_goes_on_with_the_same_sequences() -> None:
    unbroken = take(feed(), 12)
    first = feed()
    take(first, 4)
    state = first.state_dict()
    resumed = [feed(2, rank) for rank in range(2)]
    for one in resumed:
        one.load_state_dict(state)
    parts = [take(one, 2) for one in resumed]
    for i, (_, labels) in enumerate(parts[0] + parts[1]):
        assert torch.equal(labels, unbroken[4 + i][1])


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"global_batch_size": -1}, "follows the number of GPUs"),
        ({"global_batch_size": 16}, "but the pipeline delivers 8"),
        ({"local_batch_size": 3}, "cannot be cut into forwards of 3"),
        ({"dp": 3}, "1, 2, 4"),
    ],
)
def test_numbers_that_would_change_the_data_are_refused_at_construction(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        feed(**changed)


def test_a_context_length_that_differs_is_refused_at_the_first_batch() -> None:
    with pytest.raises(ConfigError, match="pack_flat"):
        take(feed(seq_len=32), 1)


def test_without_torchtitan_the_class_says_what_to_do() -> None:
    try:
        import torchtitan  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        with pytest.raises(ConfigError, match="BaseDataLoader was not found"):
            dataloader_class()
    else:
        assert issubclass(dataloader_class(), TitanFeed)
