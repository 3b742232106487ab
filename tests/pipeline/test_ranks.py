"""Which rank of how many a pipeline is for."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import pytest

from zephon import Dataset, InMemoryShard, Pipeline, StaticMixtureWorkSource
from zephon.errors import ConfigError
from zephon.pipeline.options import Options
from zephon.pipeline.ranks import Ranks, divide, existing_ranks


def ranks(monkeypatch: pytest.MonkeyPatch, rank: int, size: int) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(size))


def small(**options: int) -> Pipeline:
    rows = [{"text": f"document number {i}"} for i in range(400)]
    source = StaticMixtureWorkSource(
        [Dataset.from_dict("d", {"s": InMemoryShard(rows)})], exhausted_policy="repeat", chunk_bytes=256
    )
    built = Pipeline(source).options(max_workers=0, **options)
    return built.tokenize(tokenizer_id="bytes", field="text").pack_flat(16, algorithm="wrap").batch(2)


def test_without_other_ranks_it_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert divide(Options())[:2] == (1, 0)
    ranks(monkeypatch, 0, 1)
    assert divide(Options())[:2] == (1, 0)
    assert divide(Options(dp_degree=2, dp_group_id=1))[:2] == (2, 1)


def test_where_other_ranks_exist_the_division_follows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks(monkeypatch, 1, 2)
    assert divide(Options())[:2] == (2, 1)
    assert divide(Options(dp_degree=2))[:2] == (2, 1)
    assert divide(Options(dp_degree=1))[:2] == (1, 0)  # tensor peers, which read the same
    assert divide(Options(world_size=2, global_rank=1))[:2] == (2, 1)


def test_where_only_the_options_know_other_ranks_it_follows_the_options() -> None:
    assert divide(Options(world_size=4, global_rank=3))[:2] == (4, 3)
    assert divide(Options(world_size=4, global_rank=3, dp_degree=2, dp_group_id=1))[:2] == (2, 1)
    with pytest.raises(ConfigError, match="does not say which rank"):
        divide(Options(world_size=2))


@pytest.mark.parametrize(
    "options",
    [
        {"dp_degree": 4},
        {"dp_degree": 3, "dp_group_id": 1},
        {"dp_degree": 2, "dp_group_id": 0},
        {"dp_group_id": 0},
        {"world_size": 1},
        {"world_size": 2, "global_rank": 0},
    ],
)
def test_what_contradicts_the_ranks_that_exist_is_refused(monkeypatch: pytest.MonkeyPatch, options: dict[str, int]) -> None:
    ranks(monkeypatch, 1, 2)
    with pytest.raises(ConfigError, match="RANK and WORLD_SIZE say rank 1 of 2"):
        divide(Options(**options))  # type: ignore[arg-type]


def test_fewer_parts_than_ranks_need_the_part_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks(monkeypatch, 3, 4)
    with pytest.raises(ConfigError, match="dp_degree=2 without dp_group_id"):
        divide(Options(dp_degree=2))
    assert divide(Options(dp_degree=2, dp_group_id=1))[:2] == (2, 1)


@pytest.mark.parametrize(
    "environment", [{"WORLD_SIZE": "2"}, {"WORLD_SIZE": "2", "RANK": "2"}, {"WORLD_SIZE": "two", "RANK": "0"}]
)
def test_an_environment_that_says_half_is_refused(environment: Mapping[str, str]) -> None:
    with pytest.raises(ConfigError, match="do not say which rank"):
        existing_ranks(environment)


def test_an_initialised_process_group_counts_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist

    ranks(monkeypatch, 1, 2)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert existing_ranks() == Ranks(0, 1, "the torch process group")
    finally:
        dist.destroy_process_group()


def test_a_number_of_lanes_that_follows_from_the_ranks_is_refused_with_what_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks(monkeypatch, 0, 2)
    with pytest.raises(ConfigError, match=r"number of lanes is not given") as caught:
        next(iter(small()))
    assert ".options(lanes=8, global_batch_size=16)" in caught.value.remedy
    assert len(next(iter(small(lanes=8, global_batch_size=16)))) == 2


def test_lanes_and_canonical_replicas_are_two_names_for_one_number() -> None:
    assert small(lanes=4).fingerprint == small(canonical_replicas=4).fingerprint
    with pytest.raises(ConfigError, match="two names"):
        small(lanes=4, canonical_replicas=8)


def test_ranks_that_meet_after_the_division_was_looked_up_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = small(lanes=4)
    assert pipeline.world.dp_degree == 1
    ranks(monkeypatch, 1, 2)
    with pytest.raises(ConfigError, match="divided as rank 0 of 1"):
        iter(pipeline)


def test_a_worker_process_of_a_rank_is_that_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks(monkeypatch, 1, 2)
    sent = pickle.dumps(small(lanes=4).to_torch_dataset())
    monkeypatch.delenv("WORLD_SIZE")
    first = next(iter(pickle.loads(sent).pipeline))
    assert first.slots.tolist() == [4, 5]
