"""A lane by itself: what is ready, what a cursor says after each take, and what a push of several chunks may not change."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engine.parts import program, texts, tokens
from zephon.cursor import Cursor
from zephon.engine.lane import Lane
from zephon.engine.program import Program
from zephon.engine.rows import gather
from zephon.engine.runners.base import InlineRunner
from zephon.types import Columns

CHUNKS = [["aaaaa", "bb"], ["ccc"], ["dddd"], ["eeeeee"], ["f"], ["gg"]]
ROWS = ["aaaa", "abbc", "ccdd", "ddee", "eeee", "fgg\0"]


def lane_of(work: Program, cursor: Cursor = Cursor(), window: int = 1) -> Lane:  # noqa: B008 - an immutable value
    return Lane(0, work, InlineRunner(work.work), cursor, window)


def taken(lane: Lane, count: int) -> list[str]:
    assert lane.ensure(count)
    return texts(gather(lane.take(count))[0])


@pytest.mark.parametrize("window", [1, 2, 4, 8])
def test_sequences_come_in_the_order_of_the_chunks_however_many_chunks_are_ahead(window: int) -> None:
    lane = lane_of(program(CHUNKS), window=window)
    assert [taken(lane, 1)[0] for _ in ROWS] == ROWS
    assert not lane.ensure(1)


@pytest.mark.parametrize("window", [1, 4])
def test_a_cursor_counts_sequences_since_the_sentinel_and_names_what_is_carried_over_it(window: int) -> None:
    lane = lane_of(program(CHUNKS), window=window)
    cursors = []
    for _ in range(5):
        taken(lane, 1)
        cursors.append((lane.cursor.position, lane.cursor.carried_chunks, lane.cursor.carried_tokens, lane.cursor.delivered))
    # The sentinel after two chunks carries "cc", that after four carries nothing.
    assert cursors == [(0, 0, 0, 1), (0, 0, 0, 2), (2, 1, 2, 1), (2, 1, 2, 2), (2, 1, 2, 3)]
    assert lane.cursor.tokens == (20,)


@pytest.mark.parametrize("window", [1, 4])
def test_a_lane_goes_on_from_each_of_its_cursors(window: int) -> None:
    for delivered in range(len(ROWS)):
        before = lane_of(program(CHUNKS))
        for _ in range(delivered):
            taken(before, 1)
        after = lane_of(program(CHUNKS), before.cursor, window)
        assert [taken(after, 1)[0] for _ in ROWS[delivered:]] == ROWS[delivered:]


def test_ensure_makes_no_more_than_is_asked_for_and_says_when_the_lane_has_ended() -> None:
    lane = lane_of(program(CHUNKS))
    assert lane.ensure(1)
    assert lane.ready == 1
    assert not lane.ensure(100)
    assert lane.ready == len(ROWS)


def test_skipped_steps_pass_uncounted_and_are_reported_as_dropped() -> None:
    lane = lane_of(program(CHUNKS), Cursor(skipped_steps=((0, 2),)))
    assert lane.skip_steps(0, 1)
    assert taken(lane, 1) == [ROWS[2]]
    assert lane.cursor.tokens == (4,)
    assert [(some.reason, len(some)) for some in lane.take_dropped()] == [("skip: steps (sequences)", 2)]
    assert lane.take_dropped() == []


def test_dropped_to_end_runs_out_the_lane_and_ends_where_something_fails() -> None:
    def fails(columns: Columns) -> Columns:
        columns = columns.keep(np.flatnonzero(columns.row != 0), "first")
        if 2 in columns.row:
            raise KeyError("two")
        return columns

    lane = lane_of(program([["aaaa"], ["bbbb"], ["cccc"]], stages=[tokens, fails]))
    behind = ("after the last full step (sequences)", [-1], 4)  # what came of the second chunk
    assert [(some.reason, some.row.tolist(), some.tokens) for some in lane.dropped_to_end()] == [("first", [0], 0), behind]
    assert lane.ready == 0
