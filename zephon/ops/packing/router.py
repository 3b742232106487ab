"""Which documents are packed, and by which packer: too short and too long ones are dropped and counted; the others go to the
packer of their dataset's group.

    documents   a: 3 tokens   b: 9   a: 0   b: 2       max_length 8, groups {a: 0, b: 1}
    filter      a: 3                        b: 2       b: 9 is longer than a row, a: 0 has no token
    route       a: 3 -> packer 0            b: 2 -> packer 1
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from zephon.errors import DataError, ErrorAddress, address_error
from zephon.ops.block import Block, addresses_of, concatenate_filled
from zephon.ops.op import Counting, LaneContext
from zephon.ops.packing.wrap import Wrap
from zephon.types import IntArray


class Packer(Protocol):
    """Packs the documents of one group."""

    def push(self, block: Block, lengths: IntArray) -> Block | None:
        """Takes documents of these lengths; returns the rows that are full now."""
        ...

    def flush(self, *, final: bool) -> Block | None:
        """Emits what is held. With ``final`` the lane has ended."""
        ...


class LengthFilter(NamedTuple):
    """Which documents are packed at all.

    Args:
        name: of the op, for reasons and errors.
        longest: tokens of a row.
        shortest: documents with fewer tokens are dropped.
        oversized: longer documents are "dropped", an "error", or "kept".
    """

    name: str
    longest: int
    shortest: int
    oversized: str

    def keeps_all(self, lengths: IntArray) -> bool:
        """Whether nothing is dropped."""
        if len(lengths) == 0 or (self.shortest == 1 and self.oversized == "kept"):
            return bool(lengths.all())
        return bool(lengths.min() >= self.shortest and (self.oversized == "kept" or lengths.max() <= self.longest))

    def split(self, lengths: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """(kept, too short, too long) as indexes."""
        short = lengths < self.shortest
        long = (lengths > self.longest) & (self.oversized != "kept")
        return np.flatnonzero(~short & ~long), np.flatnonzero(short), np.flatnonzero(long & ~short)


class Router(Counting):
    """A lane's packing.

    Args:
        length_filter: which documents are packed.
        lengths: int64[n] of a block's documents.
        groups: the group of each dataset.
        packers: one for each group.
        context: of the lane.
    """

    def __init__(
        self,
        length_filter: LengthFilter,
        lengths: Callable[[Block], IntArray],
        groups: Sequence[int],
        packers: Sequence[Packer],
        context: LaneContext,
    ) -> None:
        super().__init__()
        self._filter, self._lengths, self._context = length_filter, lengths, context
        self._groups = np.array(groups, np.int64)
        self._packers = packers

    def push(self, block: Block) -> Block | None:
        kept, lengths = self._filtered(block)
        routed = self._routed(kept, lengths)
        return self._concatenated(self._packers[group].push(documents, sizes) for group, documents, sizes in routed)

    def flush(self, *, final: bool) -> Block | None:
        return self._concatenated(packer.flush(final=final) for packer in self._packers)

    def _concatenated(self, blocks: Iterator[Block | None]) -> Block | None:
        try:
            return concatenate_filled(blocks)
        except DataError as error:
            self._context.note_address(error)
            raise

    def group_of(self, dataset: int) -> int:
        return int(self._groups[dataset])

    def takes_all(self, block: Block) -> bool:
        """Whether nothing of a block would be dropped."""
        return self._filter.keeps_all(self._lengths(block))

    def _filtered(self, block: Block) -> tuple[Block, IntArray]:
        """The documents that are packed, and their lengths."""
        rule, lengths = self._filter, self._lengths(block)
        if rule.keeps_all(lengths):
            return block, lengths
        kept, short, long = rule.split(lengths)
        if len(long) and rule.oversized == "error":
            raise self._too_long(block, long[:1], int(lengths[long[0]]))
        self.drop(block, short, f"{rule.name}: shorter than min_sequence_length")
        self.drop(block, long, f"{rule.name}: longer than max_length")
        return block.take(kept), lengths[kept]

    def _routed(self, block: Block, lengths: IntArray) -> Iterator[tuple[int, Block, IntArray]]:
        """(group, its documents, their lengths)."""
        if len(self._packers) == 1:
            yield 0, block, lengths
            return
        groups = self._groups[block.datasets()]
        for group in np.unique(groups).tolist():
            rows = np.flatnonzero(groups == group)
            # A chunk is of one dataset, so nearly always all of it goes one way.
            yield group, block if len(rows) == len(block) else block.take(rows), lengths[rows]

    def _too_long(self, block: Block, row: IntArray, length: int) -> DataError:
        dataset, shard, document = (int(value[0]) for value in addresses_of(block, row))
        error = DataError(
            f"a document of {length} tokens is longer than max_length={self._filter.longest}",
            follows="it would have to be dropped, and drop_oversized=False says no",
            remedy="use drop_oversized=True, a larger max_length, tokenize(split_long_samples=True), or a wrap algorithm",
        )
        address_error(error, ErrorAddress(shard, document, dataset))
        self._context.note_address(error)
        return error


class CarryingRouter(Router):
    """A router to streams, each of which carries its last tokens over the sentinel. See `zephon.ops.op.Carrying`."""

    def __init__(
        self,
        length_filter: LengthFilter,
        lengths: Callable[[Block], IntArray],
        groups: Sequence[int],
        streams: Sequence[Wrap],
        context: LaneContext,
    ) -> None:
        super().__init__(length_filter, lengths, groups, streams, context)
        self._streams = streams

    @property
    def tokens_in(self) -> list[int]:
        return [stream.tokens_in for stream in self._streams]

    @property
    def carried(self) -> list[int]:
        return [stream.carried for stream in self._streams]

    def rebuild(self, block: Block) -> None:
        for group, documents, _ in self._routed(*self._filtered(block)):
            self._streams[group].rebuild(documents)

    def keep_last(self, carried: Sequence[int]) -> None:
        for stream, tokens in zip(self._streams, carried, strict=True):
            stream.keep_last(tokens)


def group_numbers(names: Sequence[str], homogeneity: str, groups: Mapping[str, str]) -> list[int]:
    """The group of each dataset, numbered in order of first appearance."""
    if homogeneity == "none":
        return [0] * len(names)
    labels = list(names) if homogeneity == "full" else [groups[name] for name in names]
    order = list(dict.fromkeys(labels))
    return [order.index(label) for label in labels]
