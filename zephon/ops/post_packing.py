"""A stage after an accumulator: it runs in the lane's thread, on what comes out of the accumulator."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from zephon.ops.block import Block, of_documents
from zephon.ops.op import Accumulator, AccumulatorOp, Counting, LaneContext, StageOp
from zephon.ops.records import columns_of, is_packed
from zephon.types import Json


@dataclasses.dataclass(frozen=True, kw_only=True)
class PostPackingStage(AccumulatorOp):
    """Turns a stage into an accumulator that holds nothing."""

    name: ClassVar[str] = "post_packing_stage"

    op: StageOp

    @property
    def reorders(self) -> bool:
        return False

    def describe(self) -> Json:
        return self.op.describe()

    def open(self, context: LaneContext) -> Accumulator:
        return _StageState(self.op, context)


class _StageState(Counting):
    """A lane's stage. It holds nothing, but its dropped documents are counted."""

    def __init__(self, op: StageOp, context: LaneContext) -> None:
        super().__init__()
        self._op, self._context = op, context
        self._stage = op.stage()

    def push(self, block: Block) -> Block | None:
        if is_packed(block):
            result, rows = self._op.on_rows(block)
            if len(result) < len(block):
                self.drop(block, np.setdiff1d(np.arange(len(block)), rows), f"{self._op.name}: None (rows)")
            return result
        try:
            columns = self._stage(columns_of(block))
        except Exception as error:
            self._context.note_address(error)
            raise
        self.dropped += columns.dropped
        columns.dropped = []
        return of_documents(columns, self._context.datasets)

    def flush(self, *, final: bool) -> Block | None:
        return None
