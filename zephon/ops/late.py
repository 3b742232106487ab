"""A stage behind an accumulator: it runs in the lane's thread, on what comes out of the accumulator."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from zephon.errors import address_of
from zephon.ops.block import Block, of_documents
from zephon.ops.op import Accumulator, AccumulatorOp, Counting, LaneContext, StageOp
from zephon.ops.records import columns_of, is_packed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Late(AccumulatorOp):
    """Turns a stage into an accumulator that holds nothing."""

    name: ClassVar[str] = "late"
    reorders: ClassVar[bool] = False

    op: StageOp

    def describe(self) -> dict[str, Any]:
        return self.op.describe()

    def open(self, context: LaneContext) -> Accumulator:
        return _Running(self.op, context)


class _Running(Counting):
    def __init__(self, op: StageOp, context: LaneContext) -> None:
        super().__init__()
        self._op, self._context = op, context
        self._stage = op.stage()

    def push(self, block: Block) -> Block | None:
        if is_packed(block):
            made, rows = self._op.on_rows(block)
            if len(made) < len(block):
                gone = [i for i in range(len(block)) if i not in set(rows)]
                self.drop(block, _array(gone), f"{self._op.name}: None (rows)")
            return made
        try:
            columns = self._stage(columns_of(block))
        except Exception as error:
            address = address_of(error)
            if address is not None and address.dataset is not None and address.dataset >= 0 and self._context.sources:
                dataset = self._context.sources[address.dataset]
                error.add_note(f"address: {dataset.address(address.shard, address.row)}, lane {self._context.lane}")
            raise
        self.dropped += columns.dropped
        columns.dropped = []
        return of_documents(columns, self._context.datasets)

    def flush(self, *, final: bool) -> Block | None:
        return None


def _array(rows: list[int]) -> Any:
    import numpy as np

    return np.array(rows, np.int64)
