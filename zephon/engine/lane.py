"""A lane: one logical stream of the run, the same whoever runs it.

Chunks come from workers in the lane's order, pass through the accumulators, and leave as sequences, each tagged with the
sentinel before it and its number since then. That tag *is* the cursor: nothing else has to be remembered.

    chunks     0   1   2 | 3   4   5 | 6 ...      | sentinel: accumulators are empty, a wrap tail is carried
    outputs      a b c d |   e f g   |
    cursor after f: position 3, delivered 2
"""

from __future__ import annotations

import collections
from typing import NamedTuple

import numpy as np

from zephon.engine.program import Program
from zephon.engine.workers import Pending, Runner
from zephon.ops.block import Block, concatenate, of_documents
from zephon.ops.op import Accumulator, Carrying, LaneContext
from zephon.state import Cursor
from zephon.types import Columns

_NONE = np.empty(0, np.int64)


class _Output(NamedTuple):
    """Outputs of one push, with what their cursors need."""

    block: Block
    position: int
    tail_chunks: int
    tail_tokens: int
    first: int


class Lane:
    """Runs one lane from a cursor on. Single-threaded; only `Program.process` runs elsewhere.

    Args:
        lane: its number.
        program: what to run.
        runner: where chunks are processed.
        cursor: where to begin.
        window: how many chunks may be under way or ready ahead of the accumulators.
    """

    def __init__(self, lane: int, program: Program, runner: Runner, cursor: Cursor, window: int) -> None:
        self.lane = lane
        self.cursor = cursor
        self._program, self._runner, self._window = program, runner, window
        context = LaneContext(lane, len(program.datasets))
        self._chain: list[Accumulator] = [op.open(context) for op in program.accumulators]
        self._carrier_index = next((i for i, op in enumerate(program.accumulators) if op.carries), None)
        # A tail behind an op that reorders is only made again by replaying whole flush intervals.
        upstream = program.accumulators[: self._carrier_index] if self._carrier_index is not None else []
        self._grain = program.flush_every if any(op.reorders for op in upstream) else 1
        self._pending: collections.deque[Pending[Columns | None]] = collections.deque()
        self._submitted = self._position = cursor.position - cursor.tail_chunks
        self._inflow = collections.deque([(self._position, 0)])
        self._outputs: collections.deque[_Output] = collections.deque()
        self._ready = 0
        self._ended = False
        self._tokens = np.array(cursor.tokens or [0] * len(program.datasets), np.int64)
        self._block = (cursor.position, cursor.tail_chunks, cursor.tail_tokens)
        self._made = 0
        self._to_drop = cursor.delivered
        self._primed = False

    def fill(self) -> None:
        """Gives workers what the lane will need next."""
        while not self._ended and len(self._pending) < self._window:
            self._pending.append(self._runner.submit(self._program.process, self.lane, self._submitted))
            self._submitted += 1

    def ensure(self, count: int) -> bool:
        """Makes at least ``count`` sequences ready; False when the lane ends before that."""
        if not self._primed:
            self._prime()
        while self._ready < count and not self._ended:
            self._advance()
        return self._ready >= count

    @property
    def ready(self) -> int:
        return self._ready

    def take(self, count: int) -> Block:
        """The next ``count`` sequences, which must be ready. Moves the cursor behind them."""
        assert self._ready >= count
        if count == 0:
            return Block([], _NONE, _NONE, _NONE.reshape(0, len(self._tokens)))
        taken: list[Block] = []
        missing = count
        while missing:
            output = self._outputs.popleft()
            n = min(missing, len(output.block))
            if n < len(output.block):
                rest = output.block.take(np.arange(n, len(output.block)))
                self._outputs.appendleft(output._replace(block=rest, first=output.first + n))
                output = output._replace(block=output.block.take(np.arange(n)))
            taken.append(output.block)
            self._tokens += output.block.counts.sum(axis=0)
            missing -= n
            self.cursor = Cursor(
                output.position, output.tail_chunks, output.tail_tokens, output.first + n, tuple(self._tokens.tolist())
            )
        self._ready -= count
        return concatenate(taken)

    def _advance(self) -> None:
        columns = self._next()
        if columns is None:
            self._flush(final=True)
            self._ended = True
            self._pending.clear()
            return
        self._emit(self._through(0, of_documents(columns, len(self._program.datasets))))
        self._position += 1
        sentinel = self._position % self._program.flush_every == 0
        if sentinel:
            self._flush(final=False)
        if self._position % self._grain == 0:
            self._note_inflow()
        if sentinel:
            self._begin_block()

    def _next(self) -> Columns | None:
        self.fill()
        pending = self._pending.popleft()
        columns = pending.result()
        self.fill()
        return columns

    def _through(self, first: int, block: Block | None, last: int | None = None) -> Block | None:
        for accumulator in self._chain[first:last]:
            if block is None or len(block) == 0:
                return None
            block = accumulator.push(block)
        return block

    def _flush(self, *, final: bool) -> None:
        for i, accumulator in enumerate(self._chain):
            self._emit(self._through(i + 1, accumulator.flush(final=final)))

    def _emit(self, block: Block | None) -> None:
        if block is None or len(block) == 0:
            return
        first = self._made
        self._made += len(block)
        if first < self._to_drop:  # delivered before the cursor was taken
            drop = min(len(block), self._to_drop - first)
            block, first = block.take(np.arange(drop, len(block))), first + drop
        if len(block):
            self._outputs.append(_Output(block, *self._block, first))
            self._ready += len(block)

    def _begin_block(self) -> None:
        tail_tokens = self._carrier.carried if self._carrier_index is not None else 0
        self._block = (self._position, self._tail_chunks(tail_tokens), tail_tokens)
        self._made = self._to_drop = 0
        for accumulator in self._chain:
            accumulator.start(self._position)

    @property
    def _carrier(self) -> Carrying:
        assert self._carrier_index is not None
        carrier: Carrying = self._chain[self._carrier_index]  # type: ignore[assignment]
        return carrier

    def _note_inflow(self) -> None:
        if self._carrier_index is None:
            return
        carrier, noted = self._carrier, self._inflow
        noted.append((self._position, carrier.inflow))
        while len(noted) > 1 and carrier.inflow - noted[1][1] >= carrier.carried:
            noted.popleft()  # an older start is never needed again: the tail begins behind it

    def _tail_chunks(self, tokens: int) -> int:
        if tokens == 0:
            return 0
        start = max(position for position, inflow in self._inflow if self._carrier.inflow - inflow >= tokens)
        return self._position - start

    def _prime(self) -> None:
        """Makes the carried tail again from the chunks it came from, then begins the block."""
        self._primed = True
        upstream = self._carrier_index or 0
        datasets = len(self._program.datasets)
        for accumulator in self._chain:
            accumulator.start(self._position)
        while self._position < self.cursor.position:
            columns = self._next()
            assert columns is not None
            self._prime_with(self._through(0, of_documents(columns, datasets), upstream))
            self._position += 1
            if self._position % self._program.flush_every == 0:
                for i in range(upstream):
                    self._prime_with(self._through(i + 1, self._chain[i].flush(final=False), upstream))
                    self._chain[i].start(self._position)
            if self._position % self._grain == 0:
                self._inflow.append((self._position, self._carrier.inflow))
        if self._carrier_index is not None:
            self._carrier.trim(self.cursor.tail_tokens)
        for accumulator in self._chain:
            accumulator.start(self._position)

    def _prime_with(self, block: Block | None) -> None:
        if block is not None and len(block):
            self._carrier.prime(block)
