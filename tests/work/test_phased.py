"""A mixture that changes over the run: closed forms, datasets that join and leave, boundaries, limits."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.work.test_source import dataset, listed
from zephon import Phase, PhasedMixtureWorkSource, StaticMixtureWorkSource, TokenEstimation
from zephon.errors import ConfigError
from zephon.types import Chunk
from zephon.work.phases import PARTS, first_difference, phase_of, stretches, until_of

RATE = TokenEstimation(0.5)


def source(phases: list[Phase], *, rows: int = 400, **settings: Any) -> PhasedMixtureWorkSource:
    names = dict.fromkeys(name for phase in phases for name in phase.weights)
    fixed: dict[str, Any] = {"chunk_bytes": 10, "token_estimation": RATE}
    return PhasedMixtureWorkSource([dataset(name, rows) for name in names], phases, **fixed | settings)


def in_order(work: PhasedMixtureWorkSource, count: int, lanes: int = 1) -> list[Chunk]:
    """The first chunks of all lanes, as they follow each other in the plan."""
    plan = work.plan(lanes)
    found = (plan.chunk(lane, k) for k in itertools.count() for lane in range(lanes))
    return [chunk for chunk in itertools.islice(found, count) if chunk is not None]


def test_each_phase_has_its_own_mixture_from_its_first_chunk_on() -> None:
    work = source([Phase({"a": 1}, until="100 tokens"), Phase({"a": 1, "b": 1}, until="300 tokens"), Phase({"b": 1})])
    owners = [chunk.dataset for chunk in in_order(work, 100)]  # a chunk has 5 tokens
    assert set(owners[:20]) == {0}
    assert Counter(owners[20:60]) == {0: 20, 1: 20}
    assert set(owners[60:]) == {1}


def test_steps_are_whole_global_batches() -> None:
    work = source([Phase({"a": 1}, until="3 steps"), Phase({"b": 1})])
    plan = work.plan(4, batch_tokens=40)
    assert [segment.start for segment in plan.segments] == [0, 24]
    with pytest.raises(ConfigError, match="needs rows of one length"):
        work.plan(4)


def test_the_first_phase_alone_is_the_plan_of_the_same_mixture_without_phases() -> None:
    sets = [dataset("a", 300), dataset("b", 200)]
    static = StaticMixtureWorkSource(sets, {"a": 3, "b": 1}, seed=5, exhausted_policy="repeat", chunk_bytes=30).plan(4)
    phases = [Phase({"a": 3, "b": 1}, "900 tokens"), Phase({"c": 1})]
    plan = PhasedMixtureWorkSource([*sets, dataset("c", 90)], phases, 5, chunk_bytes=30).plan(4)
    stop = plan.segments[0].stop
    assert stop is not None
    for lane in range(4):
        count = plan.position_before(lane, stop)
        assert abs(count - stop // 4) <= 2
        assert [plan.chunk(lane, k) for k in range(count)] == [static.chunk(lane, k) for k in range(count)]


@settings(deadline=None, max_examples=12)
@given(st.data())
def test_passes_go_on_where_the_last_phase_left_them(data: st.DataObject) -> None:
    names = ["a", "b", "c"]
    ends = sorted(data.draw(st.sets(st.integers(10, 3000), min_size=1, max_size=4)))
    weights = st.dictionaries(st.sampled_from(names), st.integers(1, 9), min_size=1)
    changes = st.sampled_from(["at_once", "linear", "cosine"])
    drawn = [Phase(data.draw(weights), f"{end} tokens", data.draw(changes)) for end in ends]
    phases = [Phase(dict.fromkeys(names, 1), "5 tokens"), *drawn, Phase(data.draw(weights))]
    work = source(phases, rows=40)
    lanes = data.draw(st.integers(1, 5))
    plan, seen = work.plan(lanes), Counter[int]()
    for g in range(1200):
        lane, position = plan.lane_of(g)
        chunk = plan.chunk(lane, position)
        assert chunk is not None
        visit = seen[chunk.dataset]
        assert chunk == plan.orders[chunk.dataset].chunk(visit)
        assert plan.place(chunk.dataset, visit) == g
        seen[chunk.dataset] += 1


def test_realized_shares_follow_a_linear_change() -> None:
    work = source([Phase({"a": 1}, "500 tokens"), Phase({"a": 1, "b": 3}, "50500 tokens", "linear")])
    owners = [chunk.dataset for chunk in in_order(work, 10100)]
    tenths = [sum(owners[100 + 1000 * i : 1100 + 1000 * i]) / 1000 for i in range(10)]
    assert all(abs(share - 0.75 * (i + 0.5) / 10) < 0.02 for i, share in enumerate(tenths))


def test_a_far_position_costs_what_a_near_one_costs() -> None:
    work = source([Phase({"a": 9, "b": 1}, "1e9 tokens"), Phase({"a": 1, "b": 1}, "2e9 tokens", "cosine")])
    plan = work.plan(8)

    def seconds(position: int) -> float:
        began = time.perf_counter()
        for k in range(position, position + 500):
            plan.chunk(3, k)
        return time.perf_counter() - began

    seconds(0)
    assert min(seconds(10**9) for _ in range(3)) < 3 * min(seconds(0) for _ in range(3))


def test_what_is_used_up_ends_the_source_or_leaves_its_share_to_the_others() -> None:
    phases = [Phase({"a": 1, "b": 1}, "100 tokens"), Phase({"a": 1, "c": 1})]
    stopped = source(phases, rows=30, exhausted_policy="stop").plan(2)
    assert stopped.total == 20 + 2 * 20
    shared = source(phases, rows=30, exhausted_policy="redistribute").plan(2)
    assert shared.total == 20 + 20 + 30
    visits = Counter((c.dataset, c.index) for g in range(70) if (c := shared.chunk(*shared.lane_of(g))) is not None)
    assert set(visits.values()) == {1}
    assert source(phases, rows=30, max_repeats=1).plan(2).total == 20 + 2 * 50


@pytest.mark.parametrize(
    ("phases", "says"),
    [
        ([], "a curriculum without a phase"),
        ([Phase({"a": 1}), Phase({"a": 2})], "phase 0 of 2 has no end"),
        ([Phase({"a": 1}, "9 tokens", "linear")], "the first phase is a linear change"),
        ([Phase({"a": 1}, "9 tokens"), Phase({"z": 1})], "phase 1 gives a weight to 'z'"),
        ([Phase({"b": 1})], "dataset 'a' is in no phase"),
        ([Phase({"a": 1, "b": 1}, "9 tokens"), Phase({"a": 1}, "8 tokens"), Phase({"b": 1})], "phase 1 ends at 8 tokens"),
        ([Phase({"a": 1, "b": 1e-7})], "dataset 'b' would get one in 13,333,334 chunks"),
    ],
)
def test_phases_that_do_not_fit_are_refused(phases: list[Phase], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PhasedMixtureWorkSource([dataset("a", 3), dataset("b", 4)], phases, token_estimation=RATE).plan(1)
    assert says in str(caught.value)


@pytest.mark.parametrize("text", ["2000", "-5 steps", "0 steps", "1.5 tokens", "2000 epochs", "", "1e-3 tokens"])
def test_an_end_that_is_no_number_of_steps_or_tokens_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a number of steps or tokens"):
        Phase({"a": 1}, until=text)


def test_ends_are_read_as_people_write_them() -> None:
    assert until_of("2000 steps") == until_of("2_000 steps") == until_of(" 2e3 steps") == (2000, "steps")
    assert until_of("5e9 tokens") == until_of("5,000,000,000 tokens") == (5 * 10**9, "tokens")
    with pytest.raises(ConfigError, match="a linear change of the mixture has no end"):
        Phase({"a": 1}, change="linear")
    with pytest.raises(ConfigError, match="did you mean 'cosine'"):
        Phase({"a": 1}, until="5 steps", change="cosinus")  # type: ignore[arg-type]


def test_a_phase_is_read_back_from_its_description() -> None:
    phase = Phase({"a": 0.1, "b": 3}, "70 steps", "cosine")
    assert phase_of(phase.describe()).describe() == phase.describe()


def test_a_change_has_many_mixtures_that_go_from_the_one_before_to_its_own() -> None:
    parts = list(stretches([Phase({"a": 1}, "10 steps"), Phase({"b": 1}, "20 steps", "cosine")], 100))
    shares = [part.shares.get("b", Fraction(0)) for part in parts]
    assert len(parts) == PARTS + 2
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0, 1)
    assert abs(shares[1 + PARTS // 4] - Fraction(1, 6)) < Fraction(1, 50)


@pytest.mark.parametrize(
    ("now", "first"),
    [
        ([Phase({"a": 1}, "10 steps"), Phase({"b": 1})], None),
        ([Phase({"a": 2}, "10 steps"), Phase({"b": 1}, "30 steps")], None),
        ([Phase({"a": 1}, "10 steps"), Phase({"b": 1}, "30 steps"), Phase({"a": 1})], 300),
        ([Phase({"a": 1}, "12 steps"), Phase({"b": 1})], 100),
        ([Phase({"a": 1}, "8 steps"), Phase({"b": 1})], 80),
        ([Phase({"a": 1}, "10 steps"), Phase({"a": 1, "b": 1})], 100),
        ([Phase({"b": 1})], 0),
    ],
)
def test_the_first_token_of_a_difference_is_where_the_mixture_is_another(now: list[Phase], first: int | None) -> None:
    assert first_difference([Phase({"a": 1}, "10 steps"), Phase({"b": 1})], now, 10) == first


def test_a_dataset_that_joins_later_changes_no_chunk_before() -> None:
    sets = [listed("a", 10**7), listed("b", 10**6), listed("small", 3000)]
    begin = Phase({"a": 0.9, "b": 0.1}, "500 steps")
    before = PhasedMixtureWorkSource(sets[:2], [begin], token_estimation=RATE)
    after = PhasedMixtureWorkSource(sets, [begin, Phase({"small": 1, "a": 3})], token_estimation=RATE)
    old, new = before.plan(8, None, 4096), after.plan(8, None, 4096)
    stop = new.segments[0].stop
    assert stop is not None
    for k in [*range(50), *range(stop // 8 - 50, stop // 8)]:
        assert [old.chunk(lane, k) for lane in range(8)] == [new.chunk(lane, k) for lane in range(8)]
    assert max(after.chunk_lengths(8, None, 4096)) == max(before.chunk_lengths(8, None, 4096))
    assert after.chunks_before(Fraction(500 * 4096), 8, None, 4096) == stop
