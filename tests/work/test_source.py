from __future__ import annotations

import dataclasses
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import datasets
from zephon import Dataset, InMemoryShard, MixtureSpec, StaticMixtureWorkSource, TokenEstimation
from zephon.errors import ConfigError
from zephon.io import read
from zephon.types import Sampled
from zephon.work.mixture import TABLE, Interleaving, apportion


def dataset(name: str, rows: int, size: int = 10) -> Dataset:
    return Dataset.from_dict(name, {"s": InMemoryShard([{"text": f"{i:0{size}d}"} for i in range(rows)])})


def visits(source: StaticMixtureWorkSource, lanes: int = 3) -> list[Any]:
    plan = source.plan(lanes)
    found = []
    for lane in range(lanes):
        position = 0
        while (chunk := plan.chunk(lane, position)) is not None:
            found.append(chunk)
            position += 1
    return found


@settings(deadline=None)
@given(datasets(), st.integers(1, 200), st.integers(1, 5), st.booleans())
def test_every_document_is_in_exactly_one_chunk_of_a_pass(data: Dataset, chunk_bytes: int, lanes: int, shuffled: bool) -> None:
    source = StaticMixtureWorkSource([data], chunk_bytes=chunk_bytes, shuffle_shards=shuffled, shuffle_within_shard=shuffled)
    seen: Counter[tuple[int, int]] = Counter()
    for chunk in visits(source, lanes):
        columns = read(data, chunk)
        seen.update(zip(columns.shard.tolist(), columns.row.tolist(), strict=True))
    assert set(seen.values()) == {1}
    assert len(seen) == sum(len(shard.rows) for shard in data.memory)


def test_a_pass_ends_before_the_next_begins_and_each_has_its_own_order() -> None:
    data = dataset("a", 64)
    source = StaticMixtureWorkSource([data], chunk_bytes=10, exhausted_policy="repeat")
    plan = source.plan(1)
    chunks = [plan.chunk(0, k) for k in range(128)]
    order = [chunk.index for chunk in chunks if chunk is not None]
    assert sorted(order[:64]) == sorted(order[64:]) == list(range(64))
    assert order[:64] != order[64:]
    again = StaticMixtureWorkSource([data], chunk_bytes=10, exhausted_policy="repeat", reshuffle_on_repeat=False).plan(1)
    order = [chunk.index for k in range(128) if (chunk := again.chunk(0, k)) is not None]
    assert order[:64] == order[64:]


@pytest.mark.parametrize(
    ("settings", "passes"),
    [
        ({}, {"small": 4, "large": 1}),
        ({"exhausted_policy": "stop"}, {"small": 1}),
        ({"exhausted_policy": "redistribute"}, {"small": 1, "large": 1}),
        ({"stop_after_passes": 2}, {"small": 8, "large": 2}),
        ({"max_repeats": 1}, {"small": 2}),
    ],
)
def test_what_was_supplied_decides_when_the_source_ends(settings: dict[str, Any], passes: dict[str, float]) -> None:
    small, large = dataset("small", 100), dataset("large", 400)
    source = StaticMixtureWorkSource(
        [small, large], {"small": 1, "large": 1}, chunk_bytes=10, token_estimation=TokenEstimation(0.25), **settings
    )
    found = visits(source)
    counts = Counter(chunk.dataset for chunk in found)
    for name, expected in passes.items():
        index, count = ("small", "large").index(name), {"small": 100, "large": 400}[name]
        assert abs(counts[index] / count - expected) < 0.02, (counts, name)
    if settings.get("exhausted_policy") == "redistribute":
        assert Counter((c.dataset, c.index) for c in found) == Counter(
            {(0, i): 1 for i in range(100)} | {(1, i): 1 for i in range(400)}
        )
    if settings.get("exhausted_policy") == "stop":
        assert max(chunk.epoch for chunk in found) == 0


def test_repeat_never_ends_and_a_far_position_costs_no_more() -> None:
    source = StaticMixtureWorkSource([dataset("a", 10)], chunk_bytes=10, exhausted_policy="repeat")
    chunk = source.plan(8).chunk(3, 10**12)
    assert chunk is not None
    assert chunk.epoch > 10**11


def test_shares_in_tokens_follow_the_weights_whatever_the_documents_are_like() -> None:
    short, long = dataset("short", 1000, size=4), dataset("long", 1000, size=40)
    source = StaticMixtureWorkSource([short, long], {"short": 1, "long": 1}, chunk_bytes=200, exhausted_policy="repeat")
    # As measured with a tokenizer that gives the short documents twice as many tokens a byte.
    plan = source.plan(4, {"short": Sampled(500, 1000), "long": Sampled(250, 1000)})
    tokens = {0: 0.0, 1: 0.0}
    for k in range(2000):
        for lane in range(4):
            chunk = plan.chunk(lane, k)
            assert chunk is not None
            tokens[chunk.dataset] += 0.5 if chunk.dataset == 0 else 0.25
    assert abs(tokens[0] / sum(tokens.values()) - 0.5) < 0.001


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=6))
def test_an_interleaving_keeps_every_prefix_close_to_the_shares(weights: list[int]) -> None:
    mixed = Interleaving([Fraction(w) for w in weights])
    assert sum(mixed.counts) == mixed.size >= TABLE
    for g in (1, 7, 100, mixed.size - 1, mixed.size, 3 * mixed.size + 5):
        for dataset_, count in enumerate(mixed.counts):
            assert abs(mixed.before(g, dataset_) - g * count / mixed.size) <= len(weights)
    for g in (0, 5, mixed.size + 3):
        dataset_ = mixed.dataset(g)
        assert mixed.place(mixed.before(g, dataset_), dataset_) == g


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=30), st.integers(40, 500))
def test_apportioned_numbers_have_the_sum_and_no_zero(weights: list[int], total: int) -> None:
    counts = apportion([Fraction(w) for w in weights], total)
    assert sum(counts) == total
    assert min(counts) >= 1


def test_no_lane_is_starved_by_the_rhythm_of_the_mixture() -> None:
    a, b = dataset("a", 5000), dataset("b", 5000)
    source = StaticMixtureWorkSource([a, b], {"a": 1, "b": 1}, chunk_bytes=10, token_estimation=TokenEstimation(0.25))
    plan = source.plan(8)
    per_lane = [sum(plan.chunk(lane, k).dataset for k in range(400)) for lane in range(8)]  # type: ignore[union-attr]
    assert 120 < min(per_lane) <= max(per_lane) < 280


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"mixture": {"a": 1}}, "the mixture names ['a'], the datasets are ['a', 'b']"),
        ({"mixture": {"a": 1, "b": 0}}, "weights must be positive"),
        ({"stop_after_passes": 1, "exhausted_policy": "stop"}, "two rules"),
        ({"stop_after_passes": 1, "max_repeats": 1}, "two rules"),
        ({"exhausted_policy": "repeet"}, "did you mean 'repeat'?"),
        ({"chunk_bytes": 0}, "chunk_bytes=0"),
        ({"token_estimation": TokenEstimation({"a": 0.2})}, "no tokens per byte for dataset 'b'"),
    ],
)
def test_contradictions_are_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        StaticMixtureWorkSource([dataset("a", 3), dataset("b", 4)], **{"mixture": {"a": 1, "b": 1}, **arguments}).plan(1)
    assert says in str(caught.value)


def test_one_dataset_listed_twice_is_reported_not_read_twice() -> None:
    data = dataset("a", 3)
    same = Dataset("b", data.format, data.shards, data.sizes, memory=data.memory)
    with pytest.raises(ConfigError, match="'a' and 'b' are the same data"):
        StaticMixtureWorkSource([data, same])
    with pytest.raises(ConfigError, match="stands for 2 datasets"):
        StaticMixtureWorkSource([data, dataset("a", 4)])


def test_datasets_of_one_size_have_orders_of_their_own() -> None:
    a, b = dataset("a", 50), dataset("b", 50)
    source = StaticMixtureWorkSource([a, b], chunk_bytes=10)
    orders: dict[int, list[int]] = {0: [], 1: []}
    for chunk in visits(source, 1):
        orders[chunk.dataset].append(chunk.index)
    assert orders[0][:50] != orders[1][:50]
    assert np.array_equal(sorted(orders[0][:50]), sorted(orders[1][:50]))


def test_mixture_weights_may_have_any_sum() -> None:
    assert MixtureSpec({"a": 3, "b": 1}).normalized == {"a": 0.75, "b": 0.25}


@pytest.mark.parametrize("settings", [{}, {"exhausted_policy": "stop"}, {"exhausted_policy": "repeat"}])
def test_a_dataset_with_too_few_chunks_for_the_lanes_is_cut_finer(settings: dict[str, Any]) -> None:
    plan = StaticMixtureWorkSource([dataset("a", 100)], **settings).plan(8)
    first = [plan.chunk(lane, 0) for lane in range(8)]
    assert len({chunk.index for chunk in first if chunk is not None}) == 8, "no two lanes read the same, and none nothing"


def test_a_dataset_with_enough_chunks_is_cut_as_it_is_asked() -> None:
    source = StaticMixtureWorkSource([dataset("a", 64), dataset("b", 640)], {"a": 1, "b": 9}, chunk_bytes=100)
    assert [source.chunk_bytes_of(index, lanes) for index, lanes in ((0, 8), (0, 64), (0, 65), (1, 65))] == [100, 100, 100, 100]
    assert source.chunk_bytes_of(0, 80) == 640 // (4 * 8)
    assert source.chunk_bytes_of(1, 80) == 6400 // (4 * 72)


def listed(name: str, size: int) -> Dataset:
    """A listing of one shard of this size."""
    return dataclasses.replace(dataset(name, 1), sizes=np.array([size], np.int64))


def test_a_weight_that_chunks_cannot_represent_is_refused_with_the_least_that_they_can() -> None:
    with pytest.raises(ConfigError, match=r"dataset 'a' would get one in 978,206 chunks") as caught:
        StaticMixtureWorkSource([listed("a", 10**7), listed("b", 10**9)], {"a": 1e-6, "b": 1}).plan(8)
    assert "give it 1.9e+02 times its weight" in caught.value.remedy


def test_a_weight_of_a_thousandth_is_exact_to_a_thousandth_of_it() -> None:
    mixed = Interleaving([Fraction(1), Fraction(999)])
    assert abs(mixed.counts[0] / mixed.size / 0.001 - 1) <= 0.001


def test_chunks_of_a_given_length_are_taken_as_they_are() -> None:
    source = StaticMixtureWorkSource([listed("a", 10**5), listed("b", 10**9)], {"a": 1, "b": 1}, chunk_bytes=4096)
    assert source.chunk_lengths(8, None, 1 << 20) == [4096, 4096]


def test_a_mixture_inside_a_mixture_has_its_part_and_a_dataset_in_both_has_the_sum() -> None:
    mixture = MixtureSpec({"code": 1, "text": (3, {"web": 2, "code": 1})})
    assert mixture.normalized == {"code": 0.5, "web": 0.5}
    with pytest.raises(ConfigError, match="'web' is the name of a part of the mixture and of a dataset in it"):
        MixtureSpec({"web": (1, {"web": 1, "code": 1})})
    with pytest.raises(ConfigError, match="must be positive"):
        MixtureSpec({"text": (0, {"web": 1})})
