"""What a lane has ready: sequences in order, each with what its cursor needs.

Packed rows are copied together, a buffer at a time, so that a batch is a slice of it. Other elements, and the rows of a
batch that lies across two outputs, are gathered one by one.
"""

from __future__ import annotations

import collections
from typing import Generic, NamedTuple, TypeVar

from zephon.cursor import Cursor
from zephon.engine.rows import RowBuffer, RowSlice, collect
from zephon.ops.block import Block, concatenate
from zephon.types import Dropped

_BUFFER = 1 << 22  # bytes of rows copied together for delivery
Sequences = TypeVar("Sequences", Block, Block | RowSlice)


class Output(NamedTuple, Generic[Sequences]):
    """Consecutive sequences of one lane: a block as the accumulators made it, or rows of a buffer.

    Args:
        base: the cursor at the sentinel before them.
        emitted: sequences emitted since that sentinel, up to the last of these.
        dropped: documents dropped before the first of them and after the sequence before it.
    """

    sequences: Sequences
    base: Cursor
    emitted: int
    dropped: list[Dropped]


class Outputs:
    """A queue of sequences. ``ready`` says how many there are."""

    def __init__(self) -> None:
        self.ready = 0
        self._queue: collections.deque[Output[Block]] = collections.deque()
        self._buffer: RowBuffer | None = None  # rows that were cut off the queue
        self._buffered: Output[Block]  # what they were
        self._at = 0  # rows of the buffer that have been taken

    def add(self, output: Output[Block]) -> None:
        """Puts sequences of one push at the end."""
        self._queue.append(output)
        self.ready += len(output.sequences)

    def take(self, count: int) -> Output[Block | RowSlice]:
        """The next ``count`` sequences, at least 1; as many must be ready."""
        buffer = self._buffer or self._next_buffer(count)
        if buffer is None or self._at + count > len(buffer):
            return self._gathered(count)
        first, output = self._at, self._buffered
        self._at = last = first + count
        self.ready -= count
        remaining = len(buffer) - last
        if not remaining:
            self._buffer = None
        dropped = output.dropped if first == 0 else []
        return Output(RowSlice(buffer, first, last), output.base, output.emitted - remaining, dropped)

    def _next_buffer(self, count: int) -> RowBuffer | None:
        block = self._queue[0].sequences
        part = block.parts[0]
        if part.used is None or any(other.fields.keys() != part.fields.keys() for other in block.parts):
            return None  # documents; or rows whose fields differ, which is an error only where one batch holds both
        size = sum(getattr(column, "nbytes", 0) for column in part.fields.values()) // max(len(part), 1)
        self._buffered, self._at = self._cut(max(1, _BUFFER // max(size * count, 1)) * count), 0
        self._buffer = collect(self._buffered.sequences)
        return self._buffer

    def _cut(self, count: int) -> Output[Block]:
        """Up to ``count`` sequences off the first of the queue."""
        output = self._queue.popleft()
        size = len(output.sequences)
        if count >= size:
            return output
        self._queue.appendleft(output._replace(sequences=output.sequences.part_of(count, size), dropped=[]))
        return output._replace(sequences=output.sequences.part_of(0, count), emitted=output.emitted - (size - count))

    def _gathered(self, count: int) -> Output[Block | RowSlice]:
        blocks: list[Block] = []
        dropped: list[Dropped] = []
        missing = count
        while missing:
            if self._buffer is not None:
                output = self._buffered
                blocks.append(self._buffer.block(self._at, len(self._buffer)))
                dropped += [] if self._at else output.dropped
                self._buffer = None
            else:
                output = self._cut(missing)
                blocks.append(output.sequences)
                dropped += output.dropped
            missing -= len(blocks[-1])
        self.ready -= count
        return Output(concatenate(blocks), output.base, output.emitted, dropped)
