"""Each dataset's share of any thousand global batches, over the real plan, whatever weight, size, lanes and batch."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.plan_scale import listing, measure
from zephon import StaticMixtureWorkSource
from zephon.errors import ConfigError
from zephon.types import Sampled
from zephon.work.fair import share_error
from zephon.work.plan import StaticMixturePlan

RATES = (0.25, 0.45)  # tokens a byte
STEPS = 1300


def shares(plan: StaticMixturePlan, lengths: list[int], lanes: int, batch_tokens: int, spread: float) -> np.ndarray:
    """float[steps + 1]: tokens of the first dataset after each step, where chunks have so many tokens, give or take.

    Args:
        spread: standard deviation of a chunk's tokens, as a part of them.
    """
    generator = np.random.default_rng(1)
    marks = np.arange(STEPS + 1) * batch_tokens / lanes
    seen = np.zeros(STEPS + 1)
    tokens = [length * rate for length, rate in zip(lengths, RATES, strict=True)]
    for lane in range(lanes):
        count = int(1.05 * marks[-1] / min(tokens)) + 8
        owners = np.array([plan.visit(lane, position)[0] for position in range(min(count, 40_000))])  # type: ignore[index]
        sizes = np.array(tokens)[owners] * np.maximum(0.1, generator.normal(1, spread, len(owners)))
        ends = np.concatenate([[0], np.cumsum(sizes)])
        assert ends[-1] >= marks[-1] or count > 40_000
        own = np.concatenate([[0], np.cumsum(np.where(owners == 0, sizes, 0))])
        seen += np.interp(marks, ends, own)
    return seen


@settings(deadline=None, max_examples=8)
@given(st.floats(0.001, 0.999), st.sampled_from([10**7, 10**10]), st.sampled_from([(1, 1 << 14), (8, 1 << 17), (16, 1 << 19)]))
@pytest.mark.parametrize("spread", [0.03])
def test_a_share_of_any_thousand_global_batches_is_within_one_percent_of_its_weight(
    spread: float, weight: float, size: int, world: tuple[int, int]
) -> None:
    lanes, batch_tokens = world
    source = StaticMixtureWorkSource(
        [listing("a", 1, size), listing("b", 1, 10**10)], {"a": weight, "b": 1 - weight}, exhausted_policy="repeat"
    )
    measured = {name: Sampled(int(rate * 10**6), 10**6) for name, rate in zip("ab", RATES, strict=True)}
    lengths = source.chunk_lengths(lanes, measured, batch_tokens)
    seen = shares(source.plan(lanes, measured, batch_tokens), lengths, lanes, batch_tokens, spread)
    held = 1000 * weight * batch_tokens
    off = np.abs((seen[1000:] - seen[:-1000]) / held - 1).max()
    expected = share_error(weight, lanes, batch_tokens, lengths[0] * RATES[0], measured["a"])
    assert off < max(0.01, 4 * expected)
    if lengths[0] > 1024:  # not the shortest that there are
        assert 3 * expected < 0.01
    assert abs(seen[20] / (20 * weight * batch_tokens) - 1) < 0.12 or lengths[0] <= 1024


def test_chunks_that_are_too_long_for_the_mixture_are_refused_with_the_length_that_fits() -> None:
    """16 sequences of 128 tokens a step: a chunk of 256 KiB would last for thousands of steps."""
    datasets = [listing("a", 1, 10**8), listing("b", 1, 10**8)]
    with pytest.raises(
        ConfigError, match=r"chunk_bytes=262,144 is about 65,536 tokens of dataset 'a', of which 1,000"
    ) as caught:
        StaticMixtureWorkSource(datasets, {"a": 0.01, "b": 0.99}, chunk_bytes=1 << 18).plan(8, None, 2048)
    assert "at most 4,096 fits" in caught.value.remedy
    StaticMixtureWorkSource(datasets, {"a": 0.01, "b": 0.99}, chunk_bytes=4096).plan(8, None, 2048)
    StaticMixtureWorkSource(datasets, {"a": 0.01, "b": 0.99}).plan(8, None, 2048)


@pytest.mark.parametrize(("lanes", "datasets"), [(1, 2), (8, 2), (8, 5)])
def test_every_visit_is_one_lanes_and_each_lane_has_every_share_to_within_a_chunk(lanes: int, datasets: int) -> None:
    weights = {f"d{i}": Fraction(i + 1) for i in range(datasets)}
    listed = [listing(name, 1, 10**9) for name in weights]
    plan = StaticMixtureWorkSource(listed, {n: float(w) for n, w in weights.items()}, exhausted_policy="repeat").plan(lanes)
    seen, count = set(), 300
    for lane in range(lanes):
        own = [plan.visit(lane, position) for position in range(count)]
        seen |= {*own}
        got = np.bincount([dataset for dataset, _ in own], minlength=datasets)  # type: ignore[misc]
        wanted = np.array([float(w / sum(weights.values())) for w in weights.values()]) * count
        assert np.abs(got - wanted).max() < datasets
    assert len(seen) == lanes * count
    for dataset in range(datasets):
        visits = sorted(visit for of, visit in seen if of == dataset)
        assert visits[: len(visits) - 3 * lanes] == list(range(len(visits) - 3 * lanes)), "none is left out"


def test_the_plan_of_many_shards_costs_the_same_at_every_position() -> None:
    figures = measure(shards=20_000, size=2 * 10**12)
    assert figures["far_us"] < 3 * figures["near_us"]
    assert figures["plan_cpu_s"] < 2
