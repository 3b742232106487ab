"""A program: everything about a pipeline that lanes need, made once and shared by all of them."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

from zephon.errors import DataError
from zephon.io import Dataset, read
from zephon.ops.op import AccumulatorOp, LaneContext
from zephon.ops.quarantine import QuarantinedIds, QuarantinePolicy
from zephon.types import Chunk, Columns, Stage
from zephon.work import Plan

_NO_QUARANTINE = QuarantinePolicy()


class ChunkGroup(NamedTuple):
    """Consecutive chunks of a lane, which a worker takes at once.

    Args:
        first: the position of the first chunk.
        quarantined: for each chunk, the documents that are in quarantine already; None for a chunk that is not needed.
    """

    lane: int
    first: int
    quarantined: Sequence[QuarantinedIds | None]


class ChunkResult(NamedTuple):
    """A chunk from a worker: its documents (None where there is no chunk), bytes of source read, seconds by stage."""

    columns: Columns | None
    size: int
    seconds: dict[str, float]


NO_CHUNK = ChunkResult(None, 0, {})


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """What a lane runs.

    Args:
        datasets: of the source.
        plan: lane and position to chunk.
        stages: run on workers, a chunk at a time.
        accumulators: run per lane, in order.
        flush_every: chunks between sentinels, at least 1.
        quarantine: which documents go into quarantine.
        mixture_at: the source's mixture at a position of a lane, in the order of the datasets; None where it has none.
        names: of the stages, for the meters.
    """

    datasets: Sequence[Dataset]
    plan: Plan
    stages: list[Stage]
    accumulators: list[AccumulatorOp]
    flush_every: int
    quarantine: QuarantinePolicy = _NO_QUARANTINE
    mixture_at: Callable[[int], Sequence[Fraction] | None] = lambda position: None
    names: Sequence[str] = ()

    def context(self, lane: int) -> LaneContext:
        return LaneContext(lane, len(self.datasets), self.datasets, self.mixture_at)

    def work(self, group: ChunkGroup) -> list[ChunkResult | Exception]:
        """Reads the chunks of a group and runs the stages over each. Runs on a worker.

        First all are read and then all are tokenized: code that has just run is in the processor's caches, and a
        tokenizer's tables drive everything else out of them.

        Returns:
            For each chunk its result, without columns where the lane has ended, or the error to raise when its turn comes.
        """
        waiting: list[_ReadChunk | ChunkResult | Exception] = []
        for position, quarantined in enumerate(group.quarantined, group.first):
            try:
                waiting.append(NO_CHUNK if quarantined is None else self._read(group.lane, position, quarantined))
            except Exception as error:  # noqa: BLE001 - raised by the lane in its order
                waiting.append(self._with_address(error, group.lane, position))
        results: list[ChunkResult | Exception] = []
        waiting.reverse()
        while waiting:  # each is freed when it is done, so that the next can use its memory
            chunk = waiting.pop()
            if isinstance(chunk, _ReadChunk):
                try:
                    results.append(self._run(chunk))
                except Exception as error:  # noqa: BLE001 - raised by the lane in its order
                    results.append(self._with_address(error, group.lane, chunk.position))
            else:
                results.append(chunk)
        return results

    def _with_address(self, error: Exception, lane: int, position: int) -> Exception:
        chunk = self.plan.chunk(lane, position)
        assert chunk is not None
        dataset = self.datasets[chunk.dataset]
        dataset.note_address(error)
        error.add_note(f"in chunk {chunk.index} of dataset {dataset.name!r}, lane {lane}, position {position}")
        return error

    def _read(self, lane: int, position: int, quarantined: QuarantinedIds) -> _ReadChunk | ChunkResult:
        chunk = self.plan.chunk(lane, position)
        if chunk is None:
            return NO_CHUNK
        bad: list[DataError] | None = [] if self.quarantine.of(chunk.dataset) else None
        begun = time.perf_counter()
        columns = read(self.datasets[chunk.dataset], chunk, bad)
        return _ReadChunk(position, chunk, columns, bad or (), quarantined, time.perf_counter() - begun)

    def _run(self, read_chunk: _ReadChunk) -> ChunkResult:
        chunk = read_chunk.chunk
        seconds = {"read": read_chunk.seconds}
        names = self.names or [f"stage {i}" for i in range(len(self.stages))]
        timed = [functools.partial(_timed, seconds, n, stage) for n, stage in zip(names, self.stages, strict=True)]
        columns = self.quarantine.run(timed, read_chunk.columns, chunk, read_chunk.bad, read_chunk.quarantined)
        return ChunkResult(columns, sum(part.stop - part.start for part in chunk.ranges), seconds)


class _ReadChunk(NamedTuple):
    """A chunk that was read and waits for the stages."""

    position: int
    chunk: Chunk
    columns: Columns
    bad: Sequence[DataError]
    quarantined: QuarantinedIds
    seconds: float


def _timed(seconds: dict[str, float], name: str, stage: Stage, columns: Columns) -> Columns:
    begun = time.perf_counter()
    try:
        return stage(columns)
    finally:
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - begun
