"""The end of a stream, the same on all ranks: each of them also reads the lanes of the others and counts.

A lane's number of sequences follows from what is in its documents, so that nobody knows it before they are read. A rank that
reads only its own lanes would end where they end, and its peers would wait for it in their next collective. Ranks that look at
all lanes ask the same question of the same lanes at every step and need no message.

    step exists     with drop_last: every lane of the run has its share of it; without: any lane has a sequence left
"""

from __future__ import annotations

from collections.abc import Mapping

from zephon.cursor import RankState
from zephon.engine.lane import Lane
from zephon.errors import StateError


class OtherLanes:
    """The lanes of other ranks, of which nothing is delivered.

    Args:
        lanes: from the start of the stream on, also for a rank that goes on from a later state: it has no cursor of theirs.
        again: one of this rank's own lanes, from the start as well, by which a stream with other steps in it is recognized.
    """

    def __init__(self, lanes: Mapping[int, Lane], again: tuple[int, Lane]) -> None:
        self._lanes, self._again = lanes, again

    def go_to(self, state: RankState, per_lane: int) -> None:
        """Takes what was delivered before a state.

        Raises:
            StateError: a lane's step is not where the stream alone would have it, since steps were skipped.
        """
        number, own = self._again
        for lane in (*self._lanes.values(), own):
            for _ in range(state.step):
                self._take(lane, per_lane)
        if not state.microbatch and state.step and _place(own) != _place_of(state, number):
            raise StateError(
                f"lane {number} is not where {state.step} steps from the start would be: skip() was used before",
                follows="this rank could not tell where the lanes of the others end",
                remedy="say options(last_step='own') on every rank, and let ranks tell each other when their data ends",
            )

    def skip_steps(self, step: int, per_lane: int) -> bool:
        """As of `Lane.skip_steps`, for all of them."""
        return all(lane.skip_steps(step, per_lane) for lane in self._lanes.values())

    def have_step(self, per_lane: int, *, drop_last: bool) -> tuple[bool, bool]:
        """(all have their share of the next step, some have a sequence), and goes on after it."""
        enough = [lane.ensure(per_lane) for lane in self._lanes.values()]
        some = any(lane.ready for lane in self._lanes.values())
        if all(enough) or not drop_last:
            for lane in self._lanes.values():
                self._take(lane, per_lane)
        return all(enough), some

    def _take(self, lane: Lane, count: int) -> None:
        lane.ensure(count)
        lane.take(min(count, lane.ready), counted=False)
        lane.take_dropped()


def _place(lane: Lane) -> tuple[int, int, int, int]:
    return lane.cursor[:4]


def _place_of(state: RankState, number: int) -> tuple[int, int, int, int]:
    return state.lanes[number][:4]
