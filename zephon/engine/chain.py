"""A lane's accumulators, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zephon.ops.block import Block
from zephon.ops.op import Accumulator, Counting
from zephon.types import Dropped


class Chain:
    """Accumulators in order; what one emits is pushed to the next."""

    def __init__(self, accumulators: Sequence[Accumulator]) -> None:
        self._accumulators = accumulators
        self._counting = [accumulator for accumulator in accumulators if isinstance(accumulator, Counting)]

    def start(self, position: int) -> None:
        """A flush interval begins at this position."""
        for accumulator in self._accumulators:
            accumulator.start(position)

    def push(self, block: Block | None, first: int = 0) -> Block | None:
        """What comes out at the end when a block goes in at accumulator ``first``."""
        for accumulator in self._accumulators[first:]:
            if block is None or len(block) == 0:
                return None
            block = accumulator.push(block)
        return block

    def flush(self, *, final: bool) -> Iterator[Block | None]:
        """What comes out at the end as each accumulator in its turn emits what it holds."""
        for number, accumulator in enumerate(self._accumulators, 1):
            yield self.push(accumulator.flush(final=final), number)

    def take_dropped(self) -> list[Dropped]:
        """Documents that accumulators have dropped since the last call."""
        dropped: list[Dropped] = []
        for accumulator in self._counting:
            if accumulator.dropped:
                dropped += accumulator.dropped
                accumulator.dropped = []
        return dropped
