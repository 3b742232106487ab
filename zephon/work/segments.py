"""Segments: stretches of a plan with one interleaving each, laid end to end over the global chunks, and assigned to the lanes.

g           0 ............ 812 | 813 ..... 1,040 | 1,041 ...
segment            0           |        1        |    2          the datasets of a stretch in its frequencies
base        0 0                | 731 81          | ...           visits of each dataset before it: passes go on

Each dataset's visits are assigned to the lanes in rounds of one for each lane, and a lane reads its own in the order
of the global chunks. So every lane has each dataset's share to within a chunk after any number of chunks, whether or not the
other lanes are as far as it is:

g           0  1  2  3 | 4  5  6  7 | ...
visit      A0 B0 A1 A2 |A3 B1 A4 A5 | ...        round 0 of A is A0 to A3 with four lanes, round 0 of B is B0 to B3
lane        2  3  0  3 | 1  0  2  1 | ...        A's round 0 goes to 2 0 3 1, B's to 3 0 ..., each by a permutation of its own
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

TOGETHER = 64  # positions of a lane that are found together, at least
Visit = tuple[int, int]
"""A dataset's number, and how often it was visited before."""


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
    """Lane and position to chunk, and back from a visit to lane and position.

    Args:
        orders: of the datasets.
        segments: at least one; each begins where the one before stops.
        lanes: how many.
        key: of the assignment of visits to lanes.
    """

    def __init__(self, orders: Sequence[ChunkOrder], segments: Sequence[Segment], lanes: int, key: int) -> None:
        self.lanes = lanes
        self.orders, self.segments = orders, segments
        self._keys = [derive(key, order.dataset.name) for order in orders]
        self._starts = [segment.start for segment in segments]
        self._bases = [[segment.base[dataset] for segment in segments] for dataset in range(len(orders))]
        self._together = max(TOGETHER, 4 * len(orders))
        self._hold()

    def _hold(self) -> None:
        self._visits = functools.lru_cache(maxsize=max(1024, 4 * self.lanes))(self._visits_of)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_visits"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._hold()

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
        visit = self.visit(lane, position)
        return None if visit is None else self.orders[visit[0]].chunk(visit[1])

    def visit(self, lane: int, position: int) -> Visit | None:
        """Whose chunk it is, and its how manieth; None when the lane has ended."""
        block, at = divmod(position, self._together)
        visits = self._visits(lane, block)
        return visits[at] if at < len(visits) else None

    def reach(self, lane: int, position: int) -> int:
        """How many global chunks there are up to the last of a lane's first ``position`` chunks."""
        return self._place_behind(lane, position) if position else 0

    def segment_at(self, position: int) -> int:
        """The number of the segment in which a position of a lane begins, to within a few chunks."""
        return bisect.bisect_right(self._starts, position * self.lanes) - 1

    def place(self, dataset: int, visit: int) -> int | None:
        """Which global chunk is the ``visit``-th (from 0) of a dataset; None where it is never visited so often."""
        # Of several segments with this base the last one may visit it: the others rest, or are empty of it.
        start, stop, interleaving, base = self.segments[bisect.bisect_right(self._bases[dataset], visit) - 1]
        if not interleaving.counts[dataset]:
            return None
        g = start + interleaving.place(visit - base[dataset], dataset)
        return g if stop is None or g < stop else None

    def lane_of(self, g: int) -> tuple[int, int]:
        """(lane, position) of a global chunk."""
        segment = self.segments[bisect.bisect_right(self._starts, g) - 1]
        dataset = segment.interleaving.dataset(g - segment.start)
        turn, place = divmod(self._visits_before(g)[dataset], self.lanes)
        lane = int((_assignment(self._keys[dataset], turn, self.lanes) == place).nonzero()[0][0])
        return lane, self.position_before(lane, g)

    def position_before(self, lane: int, g: int) -> int:
        """How many of the first g global chunks are a lane's."""
        return sum(self._own_before(lane, dataset, visits) for dataset, visits in enumerate(self._visits_before(g)))

    # ---- which visits are a lane's

    def _visits_of(self, lane: int, block: int) -> list[Visit]:
        """The visits at the positions of a block of a lane; fewer where the lane ends."""
        first = self._place_behind(lane, block * self._together)
        # In a stretch a lane may have up to two fewer of each dataset than its part.
        end = first + (self._together + 2 * len(self.orders)) * self.lanes
        own: list[tuple[int, int, int]] = []
        for dataset, visits in enumerate(self._visits_before(first)):
            turn = self._own_before(lane, dataset, visits)
            while True:
                visit = turn * self.lanes + int(_assignment(self._keys[dataset], turn, self.lanes)[lane])
                place = self.place(dataset, visit)
                if place is None or place >= end:
                    break
                own.append((place, dataset, visit))
                turn += 1
        own.sort()
        return [(dataset, visit) for _, dataset, visit in own[: self._together]]

    def _place_behind(self, lane: int, position: int) -> int:
        """The first global chunk behind so many of a lane's own."""
        # A lane has between one less and one more of each dataset than its part.
        spread = len(self.orders) * self.lanes
        low = max(0, position * self.lanes - spread)
        more = bisect.bisect_left(range(2 * spread), position, key=lambda n: self.position_before(lane, low + n))
        return low + more

    def _visits_before(self, g: int) -> list[int]:
        """How many visits of each dataset are among the first g global chunks."""
        start, stop, interleaving, base = self.segments[bisect.bisect_right(self._starts, g) - 1]
        within = (g if stop is None else min(g, stop)) - start
        return [before + interleaving.before(within, dataset) for dataset, before in enumerate(base)]

    def _own_before(self, lane: int, dataset: int, visits: int) -> int:
        """How many of a dataset's first visits are a lane's."""
        turn, rest = divmod(visits, self.lanes)
        return turn + (rest > 0 and int(_assignment(self._keys[dataset], turn, self.lanes)[lane]) < rest)


@functools.lru_cache(maxsize=2048)
def _assignment(key: int, turn: int, lanes: int) -> IntArray:
    """Which visit of a round each lane gets; lanes that run side by side ask for the same rounds."""
    return permutation(derive(key, turn), lanes)
