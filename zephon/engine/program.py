"""A program: everything about a pipeline that lanes need, made once and shared by all of them."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Sequence
from fractions import Fraction

from zephon.engine.meters import Work
from zephon.errors import DataError
from zephon.io import Dataset, read
from zephon.ops.op import AccumulatorOp, LaneContext
from zephon.ops.quarantine import Guard, Known
from zephon.types import Columns, Stage
from zephon.work import Plan

_NOBODY = Guard()


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
    guard: Guard = _NOBODY
    weights: Sequence[Fraction] | None = None
    names: Sequence[str] = ()

    def context(self, lane: int) -> LaneContext:
        return LaneContext(lane, len(self.datasets), self.datasets, self.weights)

    def work(self, lane: int, position: int, known: Known = ()) -> Work:
        """Reads a chunk and runs the stages; no columns when the lane has ended. Runs on a worker.

        Args:
            known: (piece, row) of documents that are in quarantine already.
        """
        chunk = self.plan.chunk(lane, position)
        if chunk is None:
            return Work(None, 0, {})
        dataset = self.datasets[chunk.dataset]
        bad: list[DataError] | None = [] if self.guard.of(chunk.dataset) else None
        seconds: dict[str, float] = {}
        try:
            begun = time.perf_counter()
            columns = read(dataset, chunk, bad)
            seconds["read"] = time.perf_counter() - begun
            names = self.names or [f"stage {i}" for i in range(len(self.stages))]
            timed = [functools.partial(_timed, seconds, n, stage) for n, stage in zip(names, self.stages, strict=True)]
            columns = self.guard.run(timed, columns, chunk, bad or (), known)
        except Exception as error:
            document = getattr(error, "document", None)
            if document is not None:
                error.add_note(f"address: {dataset.address(*document)}")
            error.add_note(f"in chunk {chunk.index} of dataset {dataset.name!r}, lane {lane}, position {position}")
            raise
        return Work(columns, sum(piece.stop - piece.start for piece in chunk.pieces), seconds)


def _timed(seconds: dict[str, float], name: str, stage: Stage, columns: Columns) -> Columns:
    begun = time.perf_counter()
    try:
        return stage(columns)
    finally:
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - begun
