"""Segments: stretches of a plan with one interleaving each, laid end to end over the global chunks.

g           0 ............ 812 | 813 ..... 1,040 | 1,041 ...
segment            0           |        1        |    2          the datasets of a stretch in its frequencies
base        0 0                | 731 81          | ...           visits of each dataset before it: passes go on
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Sequence
from typing import NamedTuple

from zephon.seeds import derive, permutation
from zephon.types import Chunk, IntArray
from zephon.work.chunks import ChunkOrder
from zephon.work.mixture import Interleaving


class Segment(NamedTuple):
    """Global chunks ``start`` to ``stop`` (exclusive; None: without end) with one interleaving.

    Args:
        base: how many visits of each dataset came before.
    """

    start: int
    stop: int | None
    interleaving: Interleaving
    base: Sequence[int]


class SegmentedPlan:
    """Lane and position to chunk, and back from a visit to lane and position. See `zephon.work.source` for the lanes.

    Args:
        orders: of the datasets.
        segments: at least one; each begins where the one before stops.
        lanes: how many.
        key: of the assignment of chunks to lanes.
    """

    def __init__(self, orders: Sequence[ChunkOrder], segments: Sequence[Segment], lanes: int, key: int) -> None:
        self.lanes = lanes
        self.orders, self.segments = orders, segments
        self._key = key
        self._starts = [segment.start for segment in segments]

    @property
    def total(self) -> int | None:
        """Number of chunks until the source ends; None when it never does."""
        return self.segments[-1].stop

    @property
    def first_pass(self) -> int:
        """Chunks until each dataset has been visited completely once; of one that leaves before that all its chunks count."""
        places = [self.place(dataset, order.count - 1) for dataset, order in enumerate(self.orders)]
        completed = max((place + 1 for place in places if place is not None), default=0)
        return max(completed, sum(order.count for order, place in zip(self.orders, places, strict=True) if place is None))

    def chunk(self, lane: int, position: int) -> Chunk | None:
        """The chunk at a position of a lane; None when the lane has ended."""
        g = position * self.lanes + (int(_assignment(self._key, position, self.lanes)[lane]) if self.lanes > 1 else 0)
        start, stop, interleaving, base = self.segments[bisect.bisect_right(self._starts, g) - 1]
        if stop is not None and g >= stop:
            return None
        dataset = interleaving.dataset(g - start)
        return self.orders[dataset].chunk(base[dataset] + interleaving.before(g - start, dataset))

    def segment_at(self, position: int) -> int:
        """The number of the segment in which a position of a lane begins."""
        return bisect.bisect_right(self._starts, position * self.lanes) - 1

    def place(self, dataset: int, visit: int) -> int | None:
        """Which global chunk is the ``visit``-th (from 0) of a dataset; None where it is never visited so often."""
        for start, stop, interleaving, base in reversed(self.segments):
            if base[dataset] <= visit and interleaving.counts[dataset]:
                g = start + interleaving.place(visit - base[dataset], dataset)
                return g if stop is None or g < stop else None
        return None

    def lane_of(self, g: int) -> tuple[int, int]:
        """(lane, position) of a global chunk."""
        position, place = divmod(g, self.lanes)
        if self.lanes == 1:
            return 0, position
        return int((_assignment(self._key, position, self.lanes) == place).nonzero()[0][0]), position


@functools.lru_cache(maxsize=256)
def _assignment(key: int, block: int, lanes: int) -> IntArray:
    """Which of a block's chunks each lane gets; lanes that run side by side ask for the same blocks."""
    return permutation(derive(key, block), lanes)
