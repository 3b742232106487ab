"""A lane's chunks in their order: a bounded number of them at workers, or ready.

submitted   [ 4  5  6  7 ] [ 8  9 10 11 ]     in groups of `GROUP`, each a worker's
next          ^                               waits for its group's worker
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable

from zephon.engine.meters import Meters
from zephon.engine.program import NO_CHUNK, ChunkGroup, ChunkResult
from zephon.engine.runners.base import Pending
from zephon.engine.runners.make import ChunkRunner
from zephon.ops.quarantine import QuarantinedIds
from zephon.types import Columns

GROUP = 4  # chunks that a worker takes at once
Results = list[ChunkResult | Exception]


class ChunkQueue:
    """Has workers process the chunks that a lane needs next, and returns them one by one.

    Args:
        lane: its number.
        runner: where chunks are processed.
        position: of the first chunk.
        window: how many chunks may be at workers or ready.
        wanted: for a position, the documents of its chunk that are in quarantine already; None for a chunk that is not needed.
        meters: where work and waiting are counted.
    """

    def __init__(
        self,
        lane: int,
        runner: ChunkRunner,
        position: int,
        window: int,
        wanted: Callable[[int], QuarantinedIds | None],
        meters: Meters | None = None,
    ) -> None:
        self._lane, self._runner, self._wanted, self._meters = lane, runner, wanted, meters
        self._window, self._group = window, min(GROUP, window)
        self._submitted = position
        # Each chunk with its place in its group; None in place of a group of which nothing is needed.
        self._pending: collections.deque[tuple[Pending[Results] | None, int]] = collections.deque()
        self._closed = False

    def fill(self) -> None:
        """Gives workers what the lane will need next."""
        while not self._closed and len(self._pending) + self._group <= self._window:
            first = self._submitted
            self._submitted = first + self._group
            quarantined = tuple(map(self._wanted, range(first, self._submitted)))
            pending: Pending[Results] | None = None
            if any(ids is not None for ids in quarantined):
                pending = self._runner.submit(ChunkGroup(self._lane, first, quarantined))
            self._pending.extend((pending, place) for place in range(self._group))

    def next(self) -> Columns | None:
        """The next chunk's documents, waited for; None when the lane has ended, or the chunk is not needed."""
        self.fill()
        pending, place = self._pending.popleft()
        if pending is None:
            return None
        begun = time.perf_counter()
        results = pending.result()
        result = results[place]
        results[place] = NO_CHUNK  # so that its documents can go before those of the chunks after it
        if isinstance(result, Exception):
            raise result
        if self._meters is not None:
            # Without workers the result is made just now: that is work, not waiting.
            self._meters.chunk(result, time.perf_counter() - begun if self._runner.workers else 0.0)
        self.fill()
        return result.columns

    def following(self) -> Columns | None:
        """What `next` would give, where a worker did it in one group with the chunk before, so that nothing is waited for."""
        pending, place = self._pending[0] if self._pending else (None, 0)
        if pending is None or place == 0:
            return None
        result = pending.result()[place]
        return None if isinstance(result, Exception) else result.columns

    def close(self) -> None:
        """Asks for no more chunks."""
        self._closed = True
        self._pending.clear()
