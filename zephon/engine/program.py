"""A program: everything about a pipeline that lanes need, made once and shared by all of them."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from zephon.engine.meters import Work
from zephon.errors import DataError
from zephon.io import Dataset, read
from zephon.ops.op import AccumulatorOp, LaneContext
from zephon.ops.quarantine import QuarantinedIds, QuarantinePolicy
from zephon.types import Chunk, Columns, Stage
from zephon.work import Plan

_NOBODY = QuarantinePolicy()


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """What a lane runs.

    Args:
        datasets: of the source.
        plan: lane and position to chunk.
        stages: run on workers, a chunk at a time.
        accumulators: run per lane, in order.
        flush_every: chunks between sentinels, at least 1.
        guard: who may put documents into quarantine.
        names: of the stages, for the meters.
    """

    datasets: Sequence[Dataset]
    plan: Plan
    stages: list[Stage]
    accumulators: list[AccumulatorOp]
    flush_every: int
    guard: QuarantinePolicy = _NOBODY
    weights: Sequence[Fraction] | None = None
    names: Sequence[str] = ()

    def context(self, lane: int) -> LaneContext:
        return LaneContext(lane, len(self.datasets), self.datasets, self.weights)

    def work(self, lane: int, first: int, known: Sequence[QuarantinedIds | None]) -> list[Work | Exception]:
        """Reads consecutive chunks and runs the stages over each. Runs on a worker.

        First all are read and then all are tokenized: code that has just run is in the processor's caches, and a
        tokenizer's tables drive everything else out of them.

        Args:
            first: the position of the first chunk.
            known: for each chunk, (piece, row) of documents that are in quarantine already; None where it is not needed.

        Returns:
            For each chunk its work, without columns where the lane has ended, or the error to raise when its turn comes.
        """
        read_in: list[_Read | Work | Exception] = []
        for position, places in enumerate(known, first):
            read_in.append(_NOTHING if places is None else self._attempt(self._read, lane, position, places))
        works: list[Work | Exception] = []
        read_in.reverse()
        while read_in:  # each is let go when it is done, so that its memory serves the next
            one = read_in.pop()
            works.append(self._attempt(self._run, lane, one.position, one) if isinstance(one, _Read) else one)
        return works

    def _attempt(self, part: Callable[..., Any], lane: int, position: int, argument: Any) -> Any:
        try:
            return part(lane, position, argument)
        except Exception as error:  # noqa: BLE001 - raised by the lane in its order
            chunk = self.plan.chunk(lane, position)
            assert chunk is not None
            dataset = self.datasets[chunk.dataset]
            dataset.note_address(error)
            error.add_note(f"in chunk {chunk.index} of dataset {dataset.name!r}, lane {lane}, position {position}")
            return error

    def _read(self, lane: int, position: int, known: QuarantinedIds) -> _Read | Work:
        chunk = self.plan.chunk(lane, position)
        if chunk is None:
            return _NOTHING
        bad: list[DataError] | None = [] if self.guard.of(chunk.dataset) else None
        begun = time.perf_counter()
        columns = read(self.datasets[chunk.dataset], chunk, bad)
        return _Read(position, chunk, columns, bad or (), known, time.perf_counter() - begun)

    def _run(self, lane: int, position: int, found: _Read) -> Work:
        seconds = {"read": found.seconds}
        names = self.names or [f"stage {i}" for i in range(len(self.stages))]
        timed = [functools.partial(_timed, seconds, n, stage) for n, stage in zip(names, self.stages, strict=True)]
        columns = self.guard.run(timed, found.columns, found.chunk, found.bad, found.known)
        return Work(columns, sum(piece.stop - piece.start for piece in found.chunk.ranges), seconds)


class _Read(NamedTuple):
    """A chunk that was read and waits for the stages."""

    position: int
    chunk: Chunk
    columns: Columns
    bad: Sequence[DataError]
    known: QuarantinedIds
    seconds: float


_NOTHING = Work(None, 0, {})


def _timed(seconds: dict[str, float], name: str, stage: Stage, columns: Columns) -> Columns:
    begun = time.perf_counter()
    try:
        return stage(columns)
    finally:
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - begun
