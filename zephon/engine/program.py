"""A program: everything about a pipeline that lanes need, made once and shared by all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fractions import Fraction

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
    """

    datasets: Sequence[Dataset]
    plan: Plan
    stages: list[Stage]
    accumulators: list[AccumulatorOp]
    flush_every: int
    guard: Guard = _NOBODY
    weights: Sequence[Fraction] | None = None

    def context(self, lane: int) -> LaneContext:
        return LaneContext(lane, len(self.datasets), self.datasets, self.weights)

    def process(self, lane: int, position: int, known: Known = ()) -> Columns | None:
        """Reads a chunk and runs the stages; None when the lane has ended. Runs on a worker.

        Args:
            known: (piece, row) of documents that are in quarantine already.
        """
        chunk = self.plan.chunk(lane, position)
        if chunk is None:
            return None
        dataset = self.datasets[chunk.dataset]
        bad: list[DataError] | None = [] if self.guard.of(chunk.dataset) else None
        try:
            return self.guard.run(self.stages, read(dataset, chunk, bad), chunk, bad or (), known)
        except Exception as error:
            document = getattr(error, "document", None)
            if document is not None:
                error.add_note(f"address: {dataset.address(*document)}")
            error.add_note(f"in chunk {chunk.index} of dataset {dataset.name!r}, lane {lane}, position {position}")
            raise
