"""What a lane has ready: sequences in order, each with what its cursor needs.

Packed rows are copied together a slab at a time, so that a batch is a slice of it. Other elements, and the rows of a batch
that lies across two outputs, are gathered one by one.
"""

from __future__ import annotations

import collections
from typing import NamedTuple

import numpy as np

from zephon.cursor import Cursor
from zephon.engine.rows import Rows, Slab, collect
from zephon.ops.block import Block, concatenate
from zephon.types import Dropped

_SLAB = 1 << 22  # bytes of rows copied together for delivery
_NONE = np.empty(0, np.int64)


class Output(NamedTuple):
    """Outputs of one push: ``first`` is the number of the first since the sentinel at which ``base`` is."""

    block: Block
    base: Cursor
    first: int
    dropped: list[Dropped]


class Taken(NamedTuple):
    """Sequences taken out, how many have been made since the sentinel with the last of them, and what was left out before."""

    rows: Rows | Block
    base: Cursor
    made: int
    dropped: list[Dropped]


class Outputs:
    """A queue of sequences. ``ready`` says how many there are."""

    def __init__(self) -> None:
        self.ready = 0
        self._queue: collections.deque[Output] = collections.deque()
        self._slab: Slab | None = None  # a stretch of what was the first of the queue
        self._of = Output(Block([], _NONE, _NONE, _NONE.reshape(0, 0)), Cursor(), 0, [])
        self._at = 0

    def add(self, output: Output) -> None:
        self._queue.append(output)
        self.ready += len(output.block)

    def take(self, count: int) -> Taken:
        """The next ``count`` sequences, at least 1; as many must be ready."""
        slab = self._slab or self._next_slab(count)
        if slab is None or self._at + count > len(slab):
            return self._gathered(count)
        first, of = self._at, self._of
        self._at = last = first + count
        self.ready -= count
        if last == len(slab):
            self._slab = None
        return Taken(Rows(slab, first, last), of.base, of.first + last, of.dropped if first == 0 else [])

    def _next_slab(self, count: int) -> Slab | None:
        output = self._queue[0]
        part = output.block.parts[0]
        if part.used is None or any(other.fields.keys() != part.fields.keys() for other in output.block.parts):
            return None  # documents; or rows that differ, about which there is an error when they are put into one batch
        size = sum(getattr(column, "nbytes", 0) for column in part.fields.values()) // max(len(part), 1)
        self._of, self._at = self._cut(max(1, _SLAB // max(size * count, 1)) * count), 0
        self._slab = collect(self._of.block)
        return self._slab

    def _cut(self, count: int) -> Output:
        """Up to ``count`` sequences off the first of the queue."""
        output = self._queue.popleft()
        if count >= len(output.block):
            return output
        rest = output.block.part_of(count, len(output.block))
        self._queue.appendleft(Output(rest, output.base, output.first + count, []))
        return output._replace(block=output.block.part_of(0, count))

    def _gathered(self, count: int) -> Taken:
        taken: list[Block] = []
        dropped: list[Dropped] = []
        missing = count
        while missing:
            if self._slab is not None:
                of = self._of._replace(first=self._of.first + self._at, dropped=[] if self._at else self._of.dropped)
                taken.append(self._slab.block(self._at, len(self._slab)))
                self._slab = None
            else:
                of = self._cut(missing)
                taken.append(of.block)
            dropped += of.dropped
            missing -= len(taken[-1])
        self.ready -= count
        return Taken(concatenate(taken), of.base, of.first + len(taken[-1]), dropped)
