"""A lane: one logical stream of the run, the same on every rank and worker.

Chunks come from workers in the lane's order, pass through the accumulators, and leave as sequences, each tagged with the
sentinel before it and its number since then. That tag *is* the cursor: nothing else has to be remembered.

    chunks     0   1   2 | 3   4   5 | 6 ...      | sentinel: accumulators are empty, but for what packing carries over
    outputs      a b c d |   e f g   |
    cursor after f: position 3, delivered 2

    ChunkQueue -> Exclusions -> Chain -> Outputs          Replay: what a cursor rebuilds      NoProgressGuard: when to give up
"""

from __future__ import annotations

import contextlib
import operator

import numpy as np

from zephon.cursor import Cursor
from zephon.engine.chain import Chain
from zephon.engine.chunk_queue import ChunkQueue
from zephon.engine.exclusions import Exclusions
from zephon.engine.meters import Meters
from zephon.engine.outputs import Output, Outputs
from zephon.engine.program import Program
from zephon.engine.progress import NoProgressGuard
from zephon.engine.replay import Replay
from zephon.engine.rows import RowSlice
from zephon.engine.runners.make import ChunkRunner
from zephon.ops.block import Block, concatenate, of_documents
from zephon.ops.quarantine import QuarantinedIds
from zephon.types import Columns, Dropped

AFTER_LAST_STEP = "after the last full step (sequences)"
"""Why sequences are dropped at the end of a stream."""

_NONE = np.empty(0, np.int64)


class Lane:
    """Runs one lane from a cursor on. Single-threaded; only `Program.work` runs elsewhere.

    Args:
        lane: its number.
        program: what to run.
        runner: where chunks are processed.
        cursor: where to begin.
        window: how many chunks may be under way or ready ahead of the accumulators.
        meters: where work and waiting are counted.
    """

    def __init__(
        self, lane: int, program: Program, runner: ChunkRunner, cursor: Cursor, window: int, meters: Meters | None = None
    ) -> None:
        self.cursor = cursor
        self._datasets, self._flush_every = len(program.datasets), program.flush_every
        accumulators = [op.open(program.context(lane)) for op in program.accumulators]
        self._chain = Chain(accumulators)
        self._replay = replay = Replay(lane, program, accumulators, cursor)
        self._exclusions = exclusions = Exclusions(lane, program, cursor)
        self._guard = NoProgressGuard(lane, program, cursor.position)

        def wanted(position: int) -> QuarantinedIds | None:  # no method: a lane must be freed without the garbage collector
            return exclusions.known(position) if replay.needs(position) else None

        self._chunks = ChunkQueue(lane, runner, replay.begin, window, wanted, meters)
        self._outputs = Outputs()
        self._sentinel = cursor._replace(delivered=0)  # the cursor at the last sentinel
        self._position = cursor.position  # of the next chunk
        self._emitted = 0  # sequences since the sentinel
        self._delivered = cursor.delivered  # of these, before the lane began here
        self._tokens = cursor.tokens or (0,) * self._datasets
        self._skipped_steps = cursor.skipped_steps
        self._ended = False
        self._dropped: list[Dropped] = []  # since the last output
        self._dropped_taken: list[Dropped] = []  # with the outputs taken

    def fill(self) -> None:
        """Gives workers what the lane will need next."""
        self._chunks.fill()

    def ensure(self, count: int) -> bool:
        """Makes at least ``count`` sequences ready; False when the lane ends before that."""
        if not self._replay.rebuilt:
            self._rebuild()
        while self._outputs.ready < count and not self._ended:
            self._advance()
        return self._outputs.ready >= count

    @property
    def ready(self) -> int:
        return self._outputs.ready

    def take(self, count: int, *, counted: bool = True) -> RowSlice | Block:
        """The next ``count`` sequences, which must be ready. The cursor is then the one after them."""
        assert self._outputs.ready >= count
        if count == 0:
            return Block([], _NONE, _NONE, _NONE.reshape(0, len(self._tokens)))
        sequences, base, emitted, dropped = self._outputs.take(count)
        if dropped:
            self._dropped_taken += dropped
        if counted:
            self._tokens = tuple(map(operator.add, self._tokens, sequences.tokens()))
        # Built by place, not with `_replace`: this is done for every batch.
        self.cursor = Cursor(*base[:3], emitted, self._tokens, *base[5:8], self._skipped_steps, base.skip_rules)
        return sequences

    def take_dropped(self) -> list[Dropped]:
        """Documents dropped before and between the sequences taken since the last call."""
        if not self._dropped_taken:
            return self._dropped_taken
        dropped, self._dropped_taken = self._dropped_taken, []
        return dropped

    def dropped_to_end(self) -> list[Dropped]:
        """Runs to the lane's end and delivers nothing; documents dropped since the last call of `take_dropped`, and the whole
        sequences that are no step's.

        An error does not end the run, since nothing is delivered: the lane then ends before it.
        """
        sequences = tokens = 0
        with contextlib.suppress(Exception):
            while self.ensure(1):
                behind = self.take(self.ready, counted=False)
                sequences, tokens = sequences + len(behind), tokens + sum(behind.tokens())
        dropped = self.take_dropped() + self._dropped
        if sequences:
            nowhere = np.full(sequences, -1)
            dropped.append(Dropped(AFTER_LAST_STEP, nowhere, nowhere, nowhere, tokens))
        return dropped

    def skip_steps(self, step: int, per_step: int) -> bool:
        """Skips the steps of data that are to be skipped before this one; False when the lane ends on the way."""
        if not self._skipped_steps:
            return True
        count = sum(n for at, n in self._skipped_steps if at == step)
        self._skipped_steps = tuple(skipped for skipped in self._skipped_steps if skipped[0] != step)
        for _ in range(count):
            if not self.ensure(per_step):
                return False
            self.take(per_step, counted=False)
        if count:
            missing = np.full(count * per_step, -1)
            self._dropped_taken.append(Dropped("skip: steps (sequences)", missing, missing, missing))
        return True

    def _advance(self) -> None:
        """Pushes the next chunk, or a run of chunks. The order of these effects decides what a cursor says."""
        columns = self._chunks.next()
        if columns is None:
            self._flush(final=True)
            self._ended = True
            self._chunks.close()
            return
        self._guard.chunk(len(columns))
        # Documents are excluded before any op sees them, as in a replay, which meets them at the same chunk.
        run = [self._without_excluded(columns, self._position, self._emitted)]
        self._extend(run, columns)
        # Read before the push: from the numbers after it, the start of each chunk in the run could not be computed.
        tokens_in = self._replay.tokens_in
        # Sequences made now belong to the interval that has begun: they are emitted before a new one can begin.
        self._emit(self._chain.push(concatenate(run)))
        if len(run) > 1:
            self._replay.note_within(run, self._position, columns.dataset, tokens_in)
        self._position += len(run)
        sentinel = self._position % self._flush_every == 0
        if sentinel:
            # Before the note: ops before packing now push what they held, which came from chunks before here.
            self._flush(final=False)
        # Before the interval begins: its cursor is made from these notes, and may need this one already.
        self._replay.note(self._position)
        if sentinel:
            self._begin_interval()

    def _extend(self, run: list[Block], columns: Columns) -> None:
        """Adds the chunks that may be pushed together with the first of a run: one push is less work than several.

        Chunks join where nothing happens between them: no sentinel, nothing dropped or excluded, nothing to wait for.
        """
        if not self._replay.joins or columns.dropped or self._exclusions.skipping:
            return
        while (self._position + len(run)) % self._flush_every:
            following = self._chunks.following()
            if following is None or following.dataset != columns.dataset or len(following) == 0:
                return
            if following.dropped or following.quarantined:
                return
            if len(run) == 1 and not self._replay.takes_all(run[0]):
                return
            block = of_documents(following, self._datasets)
            if not self._replay.takes_all(block):
                return
            self._chunks.next()
            self._guard.chunk(len(following))
            run.append(block)

    def _without_excluded(self, columns: Columns, position: int, emitted: int | None) -> Block:
        """A chunk's documents; what stages or exclusions dropped is kept for the next output."""
        columns = self._exclusions.apply(columns, position, emitted)
        self._dropped += columns.dropped
        return of_documents(columns, self._datasets)

    def _flush(self, *, final: bool) -> None:
        for block in self._chain.flush(final=final):
            self._emit(block)

    def _emit(self, block: Block | None) -> None:
        """Queues sequences with the cursor of the sentinel before them; those delivered before the restart are skipped."""
        self._dropped += self._chain.take_dropped()
        if block is None or len(block) == 0:
            return
        first = self._emitted
        self._emitted += len(block)
        dropped, self._dropped = self._dropped, []
        if first < self._delivered:
            block, dropped = block.part_of(min(len(block), self._delivered - first), len(block)), []
        if len(block):
            self._outputs.add(Output(block, self._exclusions.noted_in(self._sentinel), self._emitted, dropped))

    def _begin_interval(self) -> None:
        """Accumulators are empty: from here on, cursors begin at this position."""
        self._guard.sentinel(self._position, self._emitted, self._replay.tokens_in)
        self._sentinel = sentinel = self._replay.cursor(self._position)
        self._exclusions.begin(self._position, lambda position: self._replay.reads(sentinel, position))
        self._emitted = self._delivered = 0
        self._chain.start(self._position)

    def _rebuild(self) -> None:
        """Rebuilds the carry-over, then begins the interval. What is dropped on the way was reported before."""
        self._replay.rebuild(self._read_again)
        self._chain.start(self._position)
        self._chain.take_dropped()
        self._dropped = []

    def _read_again(self, position: int) -> Block | None:
        columns = self._chunks.next()
        return None if columns is None else self._without_excluded(columns, position, None)
