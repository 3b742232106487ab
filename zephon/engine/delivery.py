"""Delivery: a rank's lanes become its microbatches, step by step in slot order, each with the state after it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from zephon.batch import SampleBatch
from zephon.cursor import RankState
from zephon.engine.ends import OtherLanes
from zephon.engine.lane import Lane
from zephon.engine.rows import RowSlice, gather, zero_weight
from zephon.io import Dataset
from zephon.ops.block import Block
from zephon.types import Address, Column, Dropped, DropSummary, IntArray, sum_by_reason
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
        sources: the datasets, for addresses.
        maps: user functions on finished batches.
    """

    world: World
    rank: int
    microbatch_size: int
    drop_last: bool
    names: Sequence[str]
    length: int | None
    emit_positions: bool
    sources: Sequence[Dataset] = ()
    maps: Sequence[Callable[[SampleBatch], SampleBatch | None]] = ()

    def batches(self, lanes: dict[int, Lane], state: RankState, others: OtherLanes | None = None) -> Iterator[SampleBatch]:
        """From a state on, until a lane ends. All sequences of a step are ready before its first batch leaves.

        Args:
            lanes: of this rank.
            state: of this rank.
            others: the other ranks' lanes, where this rank is to end with them.
        """
        plan, per_lane = self.world.microbatches(self.rank, self.microbatch_size), self.world.per_lane
        shares = {share.lane: share for share in self.world.shares(self.rank)}
        step, skip = state.step, state.microbatch
        like: Mapping[str, Column] | None = None
        for lane in lanes.values():
            lane.fill()
        if others is not None:
            others.go_to(state, per_lane)
        while True:
            done = plan[:skip]
            if skip == 0 and not all(lane.skip_steps(step, per_lane) for lane in lanes.values()):
                return
            if skip == 0 and others is not None and not others.skip_steps(step, per_lane):
                return
            if not self._step_ready(lanes, shares, done, others):
                return
            for index in range(skip, len(plan)):
                number, first, last = plan[index]
                block = self._rows(lanes[number], shares[number], first, last)
                ended = index + 1 == len(plan)
                after = RankState(step + ended, 0 if ended else index + 1, {n: lane.cursor for n, lane in lanes.items()})
                dropped = self.drop_summaries(lanes[number].take_dropped())
                batch = self._batch(block, number, first, step, (index, len(plan)), after, dropped, like)
                like = batch.fields
                yield self._mapped(batch) if self.maps else batch
            step, skip = step + 1, 0

    def _step_ready(
        self,
        lanes: dict[int, Lane],
        shares: dict[int, Share],
        done: Sequence[tuple[int, int, int]],
        others: OtherLanes | None,
    ) -> bool:
        """Whether this rank can deliver the rest of the step, and with ``others`` whether all ranks can."""
        q = self.world.per_lane
        enough = True
        for number, lane in lanes.items():
            taken = 0
            if done:
                taken = max((last for n, _, last in done if n == number), default=0)
                taken = q if taken == shares[number].last else taken
            enough = lane.ensure(q - taken) and enough
        some = any(lane.ready for lane in lanes.values())
        if others is not None:
            their_enough, their_some = others.have_step(q, drop_last=self.drop_last)
            enough, some = enough and their_enough, some or their_some
        return enough or (not self.drop_last and some)

    def _rows(self, lane: Lane, share: Share, first: int, last: int) -> RowSlice | Block | None:
        """Takes the share's rows out of the lane, skipping what other ranks own of it."""
        if first == last:
            return None
        if first == share.first and first:
            lane.take(min(first, lane.ready))
        block = lane.take(min(last - first, lane.ready))
        if last == share.last and (others := self.world.per_lane - last):
            lane.take(min(others, lane.ready))
        return block

    def _batch(
        self,
        block: RowSlice | Block | None,
        lane: int,
        first: int,
        step: int,
        microbatch: tuple[int, int],
        after: RankState,
        dropped: tuple[DropSummary, ...],
        like: Mapping[str, Column] | None,
    ) -> SampleBatch:
        if not block:
            rows = zero_weight(like, 1, self.length or 1)
            real, counts = 0, [0] * len(self.names)
        else:
            rows = gather(block)
            real, counts = len(block), block.tokens()
        return SampleBatch(
            fields=rows.fields,
            starts=rows.starts,
            used=rows.used,
            origins=rows.origins,
            step=step,
            microbatch=microbatch,
            real_rows=real,
            slots=_numbered(lane * self.world.per_lane + first, real),
            tokens=dict(zip(self.names, counts, strict=True)),
            state=after,
            emit_positions=self.emit_positions,
            dropped=dropped,
        )

    def _mapped(self, batch: SampleBatch) -> SampleBatch:
        # What a function may not change: where the batch is, and the state after it.
        step, microbatch, state, dropped = batch.step, batch.microbatch, batch.state, batch.dropped
        for function in self.maps:
            slots = batch.slots
            try:
                result = function(batch)
            except Exception as error:
                error.add_note(f"in map_batch, step {step}, microbatch {microbatch}, slots {slots.tolist()}")
                raise
            if result is None:  # all ranks run the same number of forwards, so it stays, without weight
                return dataclasses.replace(batch, real_rows=0, slots=slots[:0])
            batch = dataclasses.replace(result, step=step, microbatch=microbatch, state=state, dropped=dropped)
        return batch

    def drop_summaries(self, dropped: list[Dropped]) -> tuple[DropSummary, ...]:
        """By reason, with the first addresses."""
        if not dropped:
            return ()
        summaries: list[DropSummary] = []
        for part in dropped:
            addresses: tuple[Address, ...] = ()
            if self.sources:
                named = zip(part.dataset[:8].tolist(), part.shard[:8].tolist(), part.row[:8].tolist(), strict=True)
                addresses = tuple(self.sources[d].address(s, r) for d, s, r in named if d >= 0)
            summaries.append(DropSummary(part.reason, len(part), addresses, part.tokens))
        return sum_by_reason(summaries)


@functools.lru_cache(maxsize=1024)
def _numbered(first: int, count: int) -> IntArray:
    """Read-only, because each step shares the same numbers."""
    numbers = np.arange(first, first + count)
    numbers.flags.writeable = False
    return numbers
