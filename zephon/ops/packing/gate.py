"""The gate before packing: what is not packed is counted, and each group of datasets goes its own way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from zephon.errors import DataError, ErrorAddress, address_error
from zephon.ops.block import Block, addresses_of, concatenate_made
from zephon.ops.op import Counting, LaneContext
from zephon.ops.packing.fitting import Admission, Fitting
from zephon.types import IntArray


class Gate(Counting):
    """A lane's packing: one packer for each group. With wrap inside it carries a tail for each.

    Args:
        admission: which documents are packed.
        lengths: of a block's documents.
        groups: the group of each dataset.
        open_one: makes a packer.
        context: of the lane.
    """

    def __init__(
        self,
        admission: Admission,
        lengths: Callable[[Block], IntArray],
        groups: Sequence[int],
        open_one: Callable[[], Any],
        context: LaneContext,
    ) -> None:
        super().__init__()
        self._admission, self._lengths, self._context = admission, lengths, context
        self._groups = np.array(groups, np.int64)
        self._packers = [open_one() for _ in range(int(self._groups.max()) + 1)]

    def start(self, position: int) -> None:
        for packer in self._packers:
            packer.start(position)

    def push(self, block: Block) -> Block | None:
        admitted, lengths = self._admit(block)
        return concatenate_made(_push(packer, part, its) for packer, part, its in self._dealt(admitted, lengths))

    def takes_all(self, block: Block) -> bool:
        """Whether nothing of a block would be left out."""
        return self._admission.all_of(self._lengths(block))

    def flush(self, *, final: bool) -> Block | None:
        return concatenate_made(packer.flush(final=final) for packer in self._packers)

    @property
    def tokens_in(self) -> list[int]:
        return [packer.tokens_in[0] for packer in self._packers]

    @property
    def carried(self) -> list[int]:
        return [packer.carried[0] for packer in self._packers]

    def group_of(self, dataset: int) -> int:
        return int(self._groups[dataset])

    def rebuild(self, block: Block) -> None:
        for packer, part, _ in self._dealt(*self._admit(block)):
            packer.rebuild(part)

    def keep_last(self, carried: Sequence[int]) -> None:
        for packer, tokens in zip(self._packers, carried, strict=True):
            packer.keep_last([tokens])

    def _dealt(self, block: Block, lengths: IntArray) -> list[tuple[Any, Block, IntArray]]:
        if len(self._packers) == 1:
            return [(self._packers[0], block, lengths)]
        group = self._groups[block.datasets()]
        dealt = []
        for number in np.unique(group).tolist():
            rows = np.flatnonzero(group == number)
            # A chunk is of one dataset, so nearly always all of it goes one way.
            part = block if len(rows) == len(block) else block.take(rows)
            dealt.append((self._packers[number], part, lengths[rows]))
        return dealt

    def _admit(self, block: Block) -> tuple[Block, IntArray]:
        rule, lengths = self._admission, self._lengths(block)
        if rule.all_of(lengths):
            return block, lengths
        admitted, short, long = rule.split(lengths)
        if len(long) and rule.oversized == "error":
            self._refuse(block, long[:1], int(lengths[long[0]]))
        self.drop(block, short, f"{rule.name}: shorter than min_sequence_length")
        self.drop(block, long, f"{rule.name}: longer than max_length")
        return block.take(admitted), lengths[admitted]

    def _refuse(self, block: Block, row: IntArray, length: int) -> None:
        dataset, shard, document = (int(value[0]) for value in addresses_of(block, row))
        error = DataError(
            f"a document of {length} tokens is longer than max_length={self._admission.length}",
            follows="it would have to be left out, and drop_oversized=False says no",
            remedy="use drop_oversized=True, a larger max_length, tokenize(split_long_samples=True), or a wrap algorithm",
        )
        address_error(error, ErrorAddress(shard, document, dataset))
        self._context.note_address(error)
        raise error


def _push(packer: Any, block: Block, lengths: IntArray) -> Block | None:
    made: Block | None = packer.push(block, lengths) if isinstance(packer, Fitting) else packer.push(block)
    return made
