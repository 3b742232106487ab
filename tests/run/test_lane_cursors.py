"""What the ledger says of the lanes is enough to know their cursors before every step."""

from __future__ import annotations

from typing import Any

import pytest

from tests.laws import Job
from tests.ops.recipes import GLOBAL_BATCH, LANES, PIPELINES, phased_source, recipe
from zephon.cursor import Cursor
from zephon.run.lane_cursors import MovedCursors, cursors_before
from zephon.run.ledger import Entry


def entries(name: str, steps: int, restart: int) -> tuple[list[Entry], list[dict[int, Cursor]]]:
    """A ledger of a run that is restarted once, and the true cursors before each step."""
    make, lines, true = recipe(PIPELINES[name], phased_source), [], []
    states: Any = None
    for first, last in ((0, restart), (restart, steps)):
        moved = MovedCursors()
        with Job(make, states=states, flush_every_k_chunks=24) as job:
            for step in range(first, last):
                (state,) = job.states()
                true.append({lane: Cursor.decode(cursor) for lane, cursor in state["lanes"].items()})
                job.step()
                (state,) = job.states()
                lines.append(Entry(step, "", (), moved.of(state["lanes"])))
            states = job.states()
    return lines, true


@pytest.mark.parametrize("name", ["wrap, streaming shuffle", "quarantine", "first_fit, few bins, limits"])
def test_cursors_before_every_step_follow_from_the_few_that_are_written(name: str) -> None:
    lines, true = entries(name, 20, 9)
    written = sum(len(line.rest.get("cursors", {})) for line in lines)
    assert written < 20 * LANES / 2
    for step, expected in enumerate(true):
        cursors = cursors_before(lines, step, LANES, GLOBAL_BATCH // LANES)
        assert cursors is not None
        assert {lane: c._replace(tokens=()) for lane, c in cursors.items()} == {
            lane: c._replace(tokens=()) for lane, c in expected.items()
        }


def test_a_ledger_that_says_nothing_of_lanes_tells_so() -> None:
    assert cursors_before([Entry(0, "", (), {})], 1, 2, 1) is None
    assert cursors_before([], 0, 2, 1) == {0: Cursor(), 1: Cursor()}
