"""A program: everything about a pipeline that lanes need, made once and shared by all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from zephon.errors import DataError
from zephon.io import Dataset, read
from zephon.ops.op import AccumulatorOp, run_stages
from zephon.types import Columns, Stage
from zephon.work import Plan


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """What a lane runs.

    Args:
        datasets: of the source.
        plan: lane and position to chunk.
        stages: run on workers, a chunk at a time.
        accumulators: run per lane, in order.
        flush_every: chunks between sentinels, at least 1.
    """

    datasets: Sequence[Dataset]
    plan: Plan
    stages: list[Stage]
    accumulators: list[AccumulatorOp]
    flush_every: int

    def process(self, lane: int, position: int) -> Columns | None:
        """Reads a chunk and runs the stages; None when the lane has ended. Runs on a worker."""
        chunk = self.plan.chunk(lane, position)
        if chunk is None:
            return None
        dataset = self.datasets[chunk.dataset]
        try:
            return run_stages(self.stages, read(dataset, chunk))
        except Exception as error:
            if isinstance(error, DataError) and error.document is not None:
                error.add_note(f"address: {dataset.address(*error.document)}")
            error.add_note(f"in chunk {chunk.index} of dataset {dataset.name!r}, lane {lane}, position {position}")
            raise
