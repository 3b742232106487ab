"""A lane: one logical stream of the run, the same whoever runs it.

Chunks come from workers in the lane's order, pass through the accumulators, and leave as sequences, each tagged with the
sentinel before it and its number since then. That tag *is* the cursor: nothing else has to be remembered.

    chunks     0   1   2 | 3   4   5 | 6 ...      | sentinel: accumulators are empty, a wrap tail is carried
    outputs      a b c d |   e f g   |
    cursor after f: position 3, delivered 2
"""

from __future__ import annotations

import collections
import contextlib
import operator
import time

import numpy as np

from zephon.cursor import Cursor, QuarantinedId, SkipRule
from zephon.engine.meters import Meters, Work
from zephon.engine.outputs import Output, Outputs
from zephon.engine.program import Program
from zephon.engine.rows import Rows
from zephon.engine.runners.base import Pending, Runner
from zephon.engine.tails import Tails
from zephon.errors import DataError
from zephon.ops.block import Block, concatenate, of_documents
from zephon.ops.op import Accumulator, Carrying, Counting
from zephon.ops.quarantine import budget_exceeded
from zephon.types import Columns, Dropped

_NONE = np.empty(0, np.int64)
GROUP = 4  # chunks that a worker takes at once
_TAKEN = Work(None, 0, {})
_DROUGHT = 64


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
        self, lane: int, program: Program, runner: Runner, cursor: Cursor, window: int, meters: Meters | None = None
    ) -> None:
        self.lane = lane
        self._meters = meters
        self.cursor = cursor
        self._program, self._runner, self._window = program, runner, window
        self._chain: list[Accumulator] = [op.open(program.context(lane)) for op in program.accumulators]
        self._carrier_index = next((i for i, op in enumerate(program.accumulators) if op.carries), None)
        # A tail behind an op that reorders is only made again by replaying whole flush intervals.
        upstream = program.accumulators[: self._carrier_index] if self._carrier_index is not None else []
        self._grain = program.flush_every if any(op.reorders for op in upstream) else 1
        self._joins = self._carrier_index == 0 and all(op.joins for op in program.accumulators)
        self._pending: collections.deque[tuple[Pending[list[Work | Exception]] | None, int]] = collections.deque()
        self._submitted = self._position = cursor.position - cursor.carried_chunks
        self._tails = Tails(self._position, len(self._carrier.carried) if self._carrier_index is not None else 0)
        self._outputs = Outputs()
        self._ended = False
        self._tokens = cursor.tokens or (0,) * len(program.datasets)
        self._jumps = cursor.skipped_steps
        self._known: dict[int, list[QuarantinedId]] = {}
        for bad in cursor.quarantined_ids:
            self._known.setdefault(bad.position, []).append(bad)
        quarantined = cursor.quarantined - len(cursor.quarantined_ids)
        self._base = cursor._replace(delivered=0, tokens=(), skipped_steps=(), quarantined_ids=(), quarantined=quarantined)
        self._made = 0
        self._to_drop = cursor.delivered
        self._dry = 0  # chunks in a row without a document
        self._harvest: tuple[int, tuple[int, ...]] = (cursor.position, ())  # where something last came of the chunks
        self._primed = False
        self._dropped: list[Dropped] = []  # until the next output
        self._reported: list[Dropped] = []  # with outputs taken

    def fill(self) -> None:
        """Gives workers what the lane will need next."""
        group = min(GROUP, self._window)
        while not self._ended and len(self._pending) + group <= self._window:
            first, known = self._submitted, []
            for at in range(first, first + group):
                places = tuple((bad.range, bad.row) for bad in self._known.get(at, ()))
                known.append(places if self._needed(at) else None)
            job: Pending[list[Work | Exception]] | None = None
            if any(places is not None for places in known):
                job = self._runner.submit(self._program.work, self.lane, first, tuple(known))
            self._pending.extend((job, i) for i in range(group))
            self._submitted += group

    def ensure(self, count: int) -> bool:
        """Makes at least ``count`` sequences ready; False when the lane ends before that."""
        if not self._primed:
            self._prime()
        while self._outputs.ready < count and not self._ended:
            self._advance()
        return self._outputs.ready >= count

    @property
    def ready(self) -> int:
        return self._outputs.ready

    def take(self, count: int, *, counted: bool = True) -> Rows | Block:
        """The next ``count`` sequences, which must be ready. Moves the cursor behind them."""
        assert self._outputs.ready >= count
        if count == 0:
            return Block([], _NONE, _NONE, _NONE.reshape(0, len(self._tokens)))
        rows, base, made, dropped = self._outputs.take(count)
        if dropped:
            self._reported += dropped
        if counted:
            self._tokens = tuple(map(operator.add, self._tokens, rows.tokens()))
        self.cursor = Cursor(*base[:3], made, self._tokens, *base[5:8], self._jumps, base.skip_rules)
        return rows

    def report(self) -> list[Dropped]:
        """Documents left out between the sequences taken since the last call."""
        if not self._reported:
            return self._reported
        reported, self._reported = self._reported, []
        return reported

    def rest(self) -> list[Dropped]:
        """Runs to the lane's end and delivers nothing; documents left out since the last call of `report`.

        What fails here ends no run, since nothing is made of it: the lane then ends with what went before.
        """
        with contextlib.suppress(Exception):
            while self.ensure(1):
                self.take(self.ready, counted=False)
        return self.report() + self._dropped

    def pass_over(self, step: int, per_step: int) -> bool:
        """Follows an instruction to skip steps before this one; False when the lane ends on the way."""
        if not self._jumps:
            return True
        count = sum(n for at, n in self._jumps if at == step)
        self._jumps = tuple(jump for jump in self._jumps if jump[0] != step)
        for _ in range(count):
            if not self.ensure(per_step):
                return False
            self.take(per_step, counted=False)
        if count:
            missing = np.full(count * per_step, -1)
            self._reported.append(Dropped("skip: steps (sequences)", missing, missing, missing))
        return True

    def _advance(self) -> None:
        columns = self._next()
        if columns is None:
            self._flush(final=True)
            self._ended = True
            self._pending.clear()
            return
        self._watch_for_drought(columns)
        run = [of_documents(self._admit(columns), len(self._program.datasets))]
        while (follower := self._follower(columns, run)) is not None:
            run.append(follower)
        tokens_in = list(self._carrier.tokens_in) if self._carrier_index is not None else []
        self._emit(self._through(0, concatenate(run)))
        for block in run[:-1]:
            self._position += 1
            tokens_in[self._carrier.group_of(columns.dataset)] += int(block.used().sum())
            self._tails.note(self._position, tokens_in, self._carrier.carried)
        self._position += 1
        sentinel = self._position % self._program.flush_every == 0
        if sentinel:
            self._flush(final=False)
        if self._position % self._grain == 0:
            self._note_inflow()
        if sentinel:
            self._begin_block()

    def _follower(self, columns: Columns, run: list[Block]) -> Block | None:
        """The next chunk's documents, if they may be pushed together with those of the chunks before: it is less work.

        They may where nothing happens between the two: no sentinel, nothing left out, nothing to wait for.
        """
        if not self._joins or (self._position + len(run)) % self._program.flush_every == 0 or self._base.skip_rules:
            return None
        job, index = self._pending[0] if self._pending else (None, 0)
        if job is None or index == 0:
            return None
        if len(run) == 1 and (columns.dropped or not self._carrier.takes_all(run[0])):  # followers have been looked at
            return None
        work = job.result()[index]
        if isinstance(work, Exception) or work.columns is None or work.columns.dataset != columns.dataset:
            return None
        follower = work.columns
        if follower.dropped or follower.quarantined or len(follower) == 0:
            return None
        block = of_documents(follower, len(self._program.datasets))
        if not self._carrier.takes_all(block):
            return None
        self._next()
        self._dry = 0
        return block

    def _watch_for_drought(self, columns: Columns) -> None:
        """A source that repeats and holds no document would be read for ever."""
        self._dry = 0 if len(columns) else self._dry + 1
        if self._dry >= _DROUGHT:
            self._give_up_after(self._dry, "found no document")

    def _watch_for_harvest(self) -> None:
        """So would one whose documents are all left out by packing or an op behind it. Called at each sentinel."""
        tokens_in = tuple(self._carrier.tokens_in) if self._carrier_index is not None else ()
        if self._made or tokens_in != self._harvest[1]:
            self._harvest = (self._position, tokens_in)
        elif self._position - self._harvest[0] >= _DROUGHT:
            self._give_up_after(self._position - self._harvest[0], "made no sequence of what it found")

    def _give_up_after(self, chunks: int, what: str) -> None:
        limit = 4 * self._program.plan.first_pass + _DROUGHT  # of a lane: several passes over everything there is
        if chunks > limit:
            names = ", ".join(repr(dataset.name) for dataset in self._program.datasets)
            raise DataError(
                f"lane {self.lane} {what} in {chunks} chunks in a row of {names}",
                follows="the lane would read on for ever and deliver nothing",
                remedy="check that the datasets hold documents and that no filter or limit leaves all of them out",
            )

    def _next(self) -> Columns | None:
        self.fill()
        job, index = self._pending.popleft()
        if job is None:
            return None
        begun = time.perf_counter()
        works = job.result()
        work = works[index]
        works[index] = _TAKEN  # so that its documents can go before those behind them
        if isinstance(work, Exception):
            raise work
        if self._meters is not None:
            # Without workers the result is made just now: that is work, not waiting.
            self._meters.chunk(work, time.perf_counter() - begun if self._runner.workers else 0.0)
        self.fill()
        return work.columns

    def _admit(self, columns: Columns) -> Columns:
        """A chunk's documents, without those that an instruction leaves out; quarantine goes into the state."""
        if columns.quarantined:
            self._quarantine(columns)
        if self._base.skip_rules:
            columns = self._skip(columns)
        self._dropped += columns.dropped
        return columns

    def _quarantine(self, columns: Columns) -> None:
        known = self._known.get(self._position, [])
        found = [QuarantinedId(self._position, *place) for place in columns.quarantined]
        new = [bad for bad in found if bad not in known]
        if new and (not self._primed or self._made < self._to_drop):
            piece = self._program.plan.chunk(self.lane, self._position).ranges[new[0].range]  # type: ignore[union-attr]
            address = self._program.datasets[columns.dataset].address(piece.shard, new[0].row)
            raise DataError(
                f"a document that was used before the restart fails now: {address}",
                follows="the sequences behind it would be others than those already trained on",
                remedy="make the function that failed deterministic, or go back to the checkpoint before",
            )
        base = self._base
        self._base = base._replace(quarantined_ids=(*base.quarantined_ids, *found), quarantined=base.quarantined + len(found))
        if self._base.quarantined > self._program.guard.budget:
            raise budget_exceeded(self._program.guard.budget)

    def _skip(self, columns: Columns) -> Columns:
        rules = tuple(self._settle(rule) for rule in self._base.skip_rules)
        if rules != self._base.skip_rules:
            self._base = self._base._replace(skip_rules=rules)
        keep = np.ones(len(columns), bool)
        for rule in rules:
            if rule.after == 0 and rule.position <= self._position:
                for dataset, shard, row in rule.documents:
                    if dataset == columns.dataset:
                        keep &= (columns.shard != shard) | (columns.row != row)
        return columns.keep(np.flatnonzero(keep), "skip: document")

    def _settle(self, rule: SkipRule) -> SkipRule:
        """Turns "after so many sequences of this block" into "from this chunk on", when the time has come."""
        if rule.after == 0 or not self._primed:
            return rule
        passed = rule.position < self._base.position or self._made >= rule.after
        return SkipRule(self._position, 0, rule.documents) if passed else rule

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
        for accumulator in self._chain:
            if isinstance(accumulator, Counting) and accumulator.dropped:
                self._dropped += accumulator.dropped
                accumulator.dropped = []
        if block is None or len(block) == 0:
            return
        first = self._made
        self._made += len(block)
        dropped, self._dropped = self._dropped, []
        if first < self._to_drop:  # delivered before the cursor was taken
            drop = min(len(block), self._to_drop - first)
            block, first, dropped = block.part_of(drop, len(block)), first + drop, []
        if len(block):
            self._outputs.add(Output(block, self._base, first, dropped))

    def _begin_block(self) -> None:
        self._watch_for_harvest()
        tails: tuple[int, ...] = ()
        carried: tuple[int, ...] = ()
        if self._carrier_index is not None:
            carried = tuple(self._carrier.carried)
            tails = self._tails.chunks(self._position, self._carrier.tokens_in, carried)
        back = max(tails, default=0)
        base = self._base._replace(
            position=self._position,
            carried_chunks=back,
            carried_tokens=sum(carried),
            carried_by_group=tuple(zip(tails, carried, strict=True)) if len(tails) > 1 else (),
            quarantined_ids=tuple(bad for bad in self._base.quarantined_ids if bad.position >= self._position - back),
        )
        if base.quarantined_ids:
            kept = tuple(bad for bad in base.quarantined_ids if self._replayed(bad.position, base))
            base = base._replace(quarantined_ids=kept)
        self._base = base
        self._made = self._to_drop = 0
        for accumulator in self._chain:
            accumulator.start(self._position)

    @property
    def _carrier(self) -> Carrying:
        assert self._carrier_index is not None
        carrier: Carrying = self._chain[self._carrier_index]  # type: ignore[assignment]
        return carrier

    def _note_inflow(self) -> None:
        if self._carrier_index is not None:
            self._tails.note(self._position, self._carrier.tokens_in, self._carrier.carried)

    def _needed(self, position: int) -> bool:
        """Whether a chunk must be read; of those that only hold tails, the ones of other groups need not be."""
        return self._primed or self._replayed(position, self.cursor)

    def _replayed(self, position: int, cursor: Cursor) -> bool:
        """Whether a replay from a cursor reads the chunk at this position, which is not before the cursor's tails."""
        if not cursor.carried_by_group or position >= cursor.position or self._grain > 1:
            return True
        chunk = self._program.plan.chunk(self.lane, position)
        assert chunk is not None
        return position >= cursor.position - cursor.carried_by_group[self._carrier.group_of(chunk.dataset)][0]

    def _prime(self) -> None:
        """Makes the carried tails again from the chunks they came from, then begins the block."""
        upstream = self._carrier_index or 0
        datasets = len(self._program.datasets)
        for accumulator in self._chain:
            accumulator.start(self._position)
        while self._position < self.cursor.position:
            columns = self._next()
            if columns is not None:
                self._prime_with(self._through(0, of_documents(self._admit(columns), datasets), upstream))
            self._position += 1
            if self._position % self._program.flush_every == 0:
                for i in range(upstream):
                    self._prime_with(self._through(i + 1, self._chain[i].flush(final=False), upstream))
                    self._chain[i].start(self._position)
            if self._position % self._grain == 0:
                self._tails.note(self._position, self._carrier.tokens_in, self._everything)
        if self._carrier_index is not None:
            groups = len(self._carrier.carried)
            held = [tokens for _, tokens in self.cursor.carried_by_group] or [self.cursor.carried_tokens]
            self._carrier.keep_last(held if len(held) == groups else [0] * groups)  # a lane's very beginning has no tails
        for accumulator in self._chain:
            accumulator.start(self._position)
            if isinstance(accumulator, Counting):
                accumulator.dropped = []
        self._dropped = []
        self._primed = True

    @property
    def _everything(self) -> list[int]:
        return [1 << 62] * len(self._carrier.carried)

    def _prime_with(self, block: Block | None) -> None:
        if block is not None and len(block):
            self._carrier.rebuild(block)
