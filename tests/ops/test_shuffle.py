"""shuffle: a permutation of what passes, within the flush interval, that is really mixed."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon import Dataset, InMemoryShard, Pipeline, StaticMixtureWorkSource
from zephon.errors import ConfigError
from zephon.ops.block import Block, Part, identity
from zephon.ops.op import LaneContext
from zephon.ops.shuffle import Algorithm, Shuffle

CONTEXT = LaneContext(3, 1)
ALGORITHMS = get_args(Algorithm)


def block(first: int, n: int) -> Block:
    rows: Any = list(range(first, first + n))
    return identity(Part({"id": rows}, np.zeros(n, np.int64)), np.ones((n, 1), np.int64))


def ids(made: Block | None) -> list[int]:
    if made is None:
        return []
    return [made.parts[p].fields["id"][r] for p, r in zip(made.part.tolist(), made.row.tolist(), strict=True)]  # type: ignore[misc]


def run(sizes: list[int], *, position: int = 0, **options: Any) -> list[list[int]]:
    """Outputs of each push and of the flush, for blocks of these sizes."""
    state = Shuffle(**options).open(CONTEXT)
    state.start(position)
    out, at = [], 0
    for size in sizes:
        out.append(ids(state.push(block(at, size))))
        at += size
    return [*out, ids(state.flush(final=False))]


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(1, 30), max_size=8), buffer=st.integers(1, 40), algorithm=st.sampled_from(ALGORITHMS))
def test_everything_comes_out_once_however_it_came_in(sizes: list[int], buffer: int, algorithm: str) -> None:
    whole = list(itertools.chain(*run(sizes, buffer_size=buffer, algorithm=algorithm)))
    assert sorted(whole) == list(range(sum(sizes)))
    one_by_one = list(itertools.chain(*run([1] * sum(sizes), buffer_size=buffer, algorithm=algorithm)))
    assert one_by_one == whole, "how a lane's elements come in blocks must not matter"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_order_differs_by_seed_lane_and_interval_and_by_nothing_else(algorithm: str) -> None:
    def order(seed: int = 0, position: int = 0, lane: int = 3) -> list[int]:
        state = Shuffle(buffer_size=20, seed=seed, algorithm=algorithm).open(LaneContext(lane, 1))
        state.start(position)
        return [*ids(state.push(block(0, 60))), *ids(state.flush(final=False))]

    assert order() == order()
    assert len({tuple(o) for o in (order(), order(seed=1), order(position=8), order(lane=4))}) == 4


def test_streaming_holds_the_buffer_full_and_gives_one_out_for_each_that_comes() -> None:
    assert [len(out) for out in run([5, 5, 5, 1], buffer_size=8)] == [0, 2, 5, 1, 8]


def test_block_gives_whole_blocks_out_and_warmup_begins_with_small_ones() -> None:
    assert [len(out) for out in run([8] * 4, buffer_size=16, algorithm="block")] == [0, 16, 0, 16, 0]
    sizes = [len(out) for out in run([1] * 60, buffer_size=16, algorithm="block_warmup")]
    assert [size for size in sizes if size] == [2, 4, 8, 16, 16, 14]


@pytest.mark.parametrize("algorithm", ["streaming", "block"])
def test_elements_travel_about_as_far_as_the_buffer_is_long(algorithm: str) -> None:
    """A uniform permutation of n moves an element by n / 3 on average; a buffer by about its size."""
    n, buffer = 4000, 500
    out = list(itertools.chain(*run([100] * 40, buffer_size=buffer, algorithm=algorithm)))
    moved = np.abs(np.array(out) - np.arange(n)).mean()
    assert buffer / 4 < moved < 2 * buffer
    whole = list(itertools.chain(*run([n], buffer_size=n)))
    assert abs(np.abs(np.array(whole) - np.arange(n)).mean() / (n / 3) - 1) < 0.05


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_place_is_equally_likely(algorithm: str) -> None:
    """Chi-square over where the first of six elements lands, for 600 intervals."""
    places = np.zeros(6)
    for interval in range(600):
        out = list(itertools.chain(*run([6], position=interval, buffer_size=6, algorithm=algorithm)))
        places[out.index(0)] += 1
    if algorithm == "block_warmup":
        assert places[0] == 600, "the first block of an interval has one element here"
        return
    assert ((places - 100) ** 2 / 100).sum() < 20.5  # 99.9% of the time for five degrees of freedom


def test_held_elements_keep_only_the_parts_they_lie_in() -> None:
    state = Shuffle(buffer_size=4).open(CONTEXT)
    state.start(0)
    for i in range(200):
        state.push(block(4 * i, 4))
    assert len(state._held[0].parts) <= 4  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "why"), [({"buffer_size": 0}, "buffer_size=0"), ({"algorithm": "blocks"}, "did you mean 'block'")]
)
def test_what_cannot_work_is_refused(options: dict[str, Any], why: str) -> None:
    source = StaticMixtureWorkSource([Dataset.from_dict("d", {"s": InMemoryShard([{"text": "a"}])})])
    with pytest.raises(ConfigError, match=why):
        Pipeline(source).shuffle(**options)
