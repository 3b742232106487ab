"""Delivery: a rank's lanes become its microbatches, step by step in slot order, each with the state after it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from zephon.batch import SampleBatch, gather, zero_weight
from zephon.engine.lane import Lane
from zephon.ops.block import Block
from zephon.state import RankState
from zephon.world import Share, World


@dataclasses.dataclass(frozen=True, eq=False)
class Delivery:
    """What a rank delivers.

    Args:
        world: the division of the global batch.
        rank: the data-parallel rank.
        microbatch_size: rows of one forward, at most.
        drop_last: whether the lanes' incomplete last step is dropped.
        names: dataset names, in order.
        length: tokens of a packed row, or None for documents.
        emit_positions: whether batches have positions.
    """

    world: World
    rank: int
    microbatch_size: int
    drop_last: bool
    names: Sequence[str]
    length: int | None
    emit_positions: bool

    def batches(self, lanes: dict[int, Lane], state: RankState) -> Iterator[SampleBatch]:
        """From a state on, until a lane ends. All sequences of a step are ready before its first batch leaves."""
        plan = self.world.microbatches(self.rank, self.microbatch_size)
        shares = {share.lane: share for share in self.world.shares(self.rank)}
        step, skip = state.step, state.microbatch
        for lane in lanes.values():
            lane.fill()
        while True:
            done = plan[:skip]
            if not skip and not all([lane.pass_over(step, self.world.per_lane) for lane in lanes.values()]):
                return
            if not self._step_ready(lanes, shares, done):
                return
            for index in range(skip, len(plan)):
                lane, first, last = plan[index]
                block = self._rows(lanes[lane], shares[lane], first, last)
                ended = index + 1 == len(plan)
                after = RankState(step + ended, 0 if ended else index + 1, {n: lane.cursor for n, lane in lanes.items()})
                yield self._batch(block, lane, first, step, (index, len(plan)), after)
            step, skip = step + 1, 0

    def _step_ready(self, lanes: dict[int, Lane], shares: dict[int, Share], done: Sequence[tuple[int, int, int]]) -> bool:
        """Whether this rank can deliver the rest of the step."""
        q = self.world.per_lane
        enough = []
        for number, lane in lanes.items():
            taken = max((last for n, _, last in done if n == number), default=0)
            taken = q if taken == shares[number].last else taken
            enough.append(lane.ensure(q - taken))
        return all(enough) or (not self.drop_last and any(lane.ready for lane in lanes.values()))

    def _rows(self, lane: Lane, share: Share, first: int, last: int) -> Block | None:
        """Takes the share's rows out of the lane, passing over what other ranks own of it."""
        if first == last:
            return None
        if first == share.first and first:
            lane.take(min(first, lane.ready))
        block = lane.take(min(last - first, lane.ready))
        if last == share.last and last < self.world.per_lane:
            lane.take(min(self.world.per_lane - last, lane.ready))
        return block

    def _batch(
        self, block: Block | None, lane: int, first: int, step: int, microbatch: tuple[int, int], after: RankState
    ) -> SampleBatch:
        if block is None or len(block) == 0:
            fields, starts, used = zero_weight(None, 1, self.length or 1)
            real, counts = 0, np.zeros(len(self.names), np.int64)
        else:
            fields, maybe_starts, used = gather(block)
            real, counts = len(block), block.counts.sum(axis=0)
            starts = maybe_starts  # type: ignore[assignment]
        begin = lane * self.world.per_lane + first
        return SampleBatch(
            fields=fields,
            starts=starts,
            used=used,
            step=step,
            microbatch=microbatch,
            real_rows=real,
            slots=np.arange(begin, begin + real),
            tokens=dict(zip(self.names, counts.tolist(), strict=True)),
            state=after,
            emit_positions=self.emit_positions,
        )
