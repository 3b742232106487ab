"""What a stream drops after its last whole step: from a state on, each lane runs to its end, and nothing is delivered.

The same at every size: the state is between two steps, and each lane runs by itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from zephon.cursor import RankState
from zephon.engine.chunk_queue import GROUP
from zephon.engine.delivery import Delivery
from zephon.engine.lane import Lane
from zephon.engine.program import Program
from zephon.engine.runners.base import InlineRunner
from zephon.errors import ConfigError
from zephon.types import DropSummary, sum_by_reason


def left_in(lanes: Mapping[int, Lane], delivery: Delivery) -> tuple[DropSummary, ...]:
    """As `dropped_at_end`, of lanes that have come to the end of a stream and are still there, with their workers."""
    own = [lanes[share.lane] for share in delivery.world.shares(delivery.rank) if share.first == 0]
    return sum_by_reason(summary for lane in own for summary in delivery.drop_summaries(lane.dropped_to_end()))


def dropped_at_end(program: Program, delivery: Delivery, state: RankState) -> list[tuple[int, DropSummary]]:
    """(lane, what it drops for one reason) of the lanes whose first slot is this rank's, by lane.

    Raises:
        ConfigError: the stream has no end.
    """
    if program.plan.total is None:
        raise ConfigError(
            "dropped_at_end on a stream that never ends",
            follows="it would be read for ever",
            remedy="ask it of a source with exhausted_policy='stop' or 'redistribute', or with stop_after_passes",
        )
    runner, by_lane = InlineRunner(program.work), []
    for share in delivery.world.shares(delivery.rank):
        if share.first == 0:
            lane = Lane(share.lane, program, runner, state.lanes[share.lane], GROUP)
            by_lane += [(share.lane, summary) for summary in delivery.drop_summaries(lane.dropped_to_end())]
    return by_lane
