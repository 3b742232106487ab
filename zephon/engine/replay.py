"""Replay: what a lane carries over a sentinel, and how it is rebuilt from a cursor that holds no token.

`wrap` packing carries the last tokens that were pushed to it. A cursor says how many there are and in how many chunks
before the sentinel they lie; a restore reads these chunks again and keeps the last tokens.

    chunks          0    1    2    3 | 4         sentinel at 4
    tokens pushed   500  300  40   90            130 tokens are carried: they lie in chunks 2 and 3
    cursor at 4     carried_chunks 2, carried_tokens 130

Where an op before packing reorders, a token's chunk is unknown, so whole flush intervals are replayed. The *granularity* is
the interval there, and one chunk elsewhere.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import cast

from zephon.cursor import Cursor
from zephon.engine.chain import Chain
from zephon.engine.program import Program
from zephon.ops.block import Block
from zephon.ops.op import Accumulator, Carrying

_ALL = 1 << 62  # tokens: more than any carry-over has


class Origins:
    """From which chunk on each group's carry-over can be rebuilt: a few positions a group, however many chunks went by.

    Args:
        position: where reading begins.
        groups: how many groups packing keeps apart.
    """

    def __init__(self, position: int, groups: int) -> None:
        self._noted = [collections.deque([(position, 0)]) for _ in range(groups)]

    def note(self, position: int, tokens_in: Sequence[int], carried: Sequence[int]) -> None:
        """Notes the tokens pushed to each group before the chunk at ``position``, and those held now."""
        for noted, pushed, held in zip(self._noted, tokens_in, carried, strict=True):
            if noted[-1][1] == pushed:
                noted.pop()  # nothing of this group since: a later start serves as well
            noted.append((position, pushed))
            while len(noted) > 1 and pushed - noted[1][1] >= held:
                noted.popleft()  # an older start is never needed again: the carry-over begins after it

    def chunks(self, position: int, tokens_in: Sequence[int], carried: Sequence[int]) -> tuple[int, ...]:
        """How many chunks before ``position`` each group's carry-over began; 0 where nothing is carried."""
        back = []
        for noted, pushed, held in zip(self._noted, tokens_in, carried, strict=True):
            starts = [start for start, before in noted if pushed - before >= held]
            back.append(position - max(starts) if held else 0)
        return tuple(back)


class _NoCarryOver:
    """Stands for packing where no accumulator carries anything over: there is no group."""

    tokens_in: Sequence[int] = ()
    carried: Sequence[int] = ()

    def group_of(self, dataset: int) -> int:
        return 0

    def takes_all(self, block: Block) -> bool:
        return False

    def rebuild(self, block: Block) -> None:
        pass

    def keep_last(self, carried: Sequence[int]) -> None:
        pass


class Replay:
    """A lane's carry-over: rebuilt from a cursor, noted while the lane runs, and written into the cursors of its sentinels.

    Args:
        lane: its number.
        program: what the lane runs.
        accumulators: the lane's, one for each of the program's.
        cursor: where the lane begins.
    """

    def __init__(self, lane: int, program: Program, accumulators: Sequence[Accumulator], cursor: Cursor) -> None:
        self._lane, self._program, self._cursor = lane, program, cursor
        index = next((i for i, op in enumerate(program.accumulators) if op.carries), None)
        before = 0 if index is None else index
        self._before = Chain(accumulators[:before])
        self._packing: Carrying | _NoCarryOver = _NoCarryOver() if index is None else cast(Carrying, accumulators[index])
        reorders = any(op.reorders for op in program.accumulators[:before])
        self._granularity = program.flush_every if reorders else 1
        self.joins = index == 0 and all(op.joins for op in program.accumulators)
        self.begin = cursor.position - cursor.carried_chunks  # the first chunk that is read
        self._origins = Origins(self.begin, len(self._packing.carried))
        self.rebuilt = False

    @property
    def tokens_in(self) -> Sequence[int]:
        """Tokens pushed to packing so far, by group."""
        return self._packing.tokens_in

    def takes_all(self, block: Block) -> bool:
        """Whether packing would drop nothing of a block."""
        return self._packing.takes_all(block)

    def rebuild(self, chunk: Callable[[int], Block | None]) -> None:
        """Rebuilds the carry-over from the chunks it came from.

        Args:
            chunk: the documents of the chunk at a position, asked for in order; None where it is not needed.
        """
        groups = len(self._packing.carried)
        self._before.start(self.begin)
        for position in range(self.begin, self._cursor.position):
            self._take(self._before.push(chunk(position)))
            after = position + 1
            if after % self._program.flush_every == 0:
                for block in self._before.flush(final=False):
                    self._take(block)
                self._before.start(after)
            if after % self._granularity == 0:
                # Until `keep_last`, nobody knows which of these starts are needed: all are kept.
                self._origins.note(after, self.tokens_in, [_ALL] * groups)
        held = [tokens for _, tokens in self._cursor.carried_by_group] or [self._cursor.carried_tokens]
        self._packing.keep_last(held if len(held) == groups else [0] * groups)  # a lane's very beginning carries nothing
        self.rebuilt = True

    def _take(self, block: Block | None) -> None:
        if block is not None and len(block):
            self._packing.rebuild(block)

    def note(self, position: int) -> None:
        """Notes that the chunk at this position begins now, where a replay can begin with it."""
        if position % self._granularity == 0:
            self._origins.note(position, self._packing.tokens_in, self._packing.carried)

    def note_within(self, run: Sequence[Block], position: int, dataset: int, tokens_in: Sequence[int]) -> None:
        """Notes where each chunk but the first of a run began, after all of them have been pushed as one.

        Args:
            run: the chunks' documents.
            position: of the first chunk.
            dataset: which all of them are of.
            tokens_in: what it was before the push.
        """
        tokens = list(tokens_in)
        group = self._packing.group_of(dataset)
        for start, block in enumerate(run[:-1], position + 1):
            tokens[group] += int(block.used().sum())
            self._origins.note(start, tokens, self._packing.carried)

    def cursor(self, position: int) -> Cursor:
        """The cursor of a sentinel at this position: what is carried over it, and from where."""
        carried = self._packing.carried
        chunks = self._origins.chunks(position, self._packing.tokens_in, carried)
        by_group = tuple(zip(chunks, carried, strict=True)) if len(chunks) > 1 else ()
        return Cursor(position, max(chunks, default=0), sum(carried), carried_by_group=by_group)

    def needs(self, position: int) -> bool:
        """Whether the lane must read the chunk at this position; see `reads`."""
        return self.rebuilt or self.reads(self._cursor, position)

    def reads(self, cursor: Cursor, position: int) -> bool:
        """Whether a replay from a cursor reads the chunk at this position.

        Of the chunks before the cursor it reads only those in which their own group's carry-over lies, unless whole
        intervals are replayed.
        """
        if position >= cursor.position:
            return True
        if position < cursor.position - cursor.carried_chunks:
            return False
        if not cursor.carried_by_group or self._granularity > 1:
            return True
        chunk = self._program.plan.chunk(self._lane, position)
        assert chunk is not None
        return position >= cursor.position - cursor.carried_by_group[self._packing.group_of(chunk.dataset)][0]
