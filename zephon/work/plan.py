"""The plan of a fixed mixture: which chunk a lane reads at a position, until the source ends. See `zephon.work.source`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from fractions import Fraction

from zephon.seeds import derive, permutation
from zephon.types import Chunk, IntArray
from zephon.work.chunks import ChunkOrder
from zephon.work.mixture import Interleaving


class StaticMixturePlan:
    """See `StaticMixtureWorkSource`; made by its ``plan``."""

    def __init__(
        self,
        orders: Sequence[ChunkOrder],
        frequencies: Sequence[Fraction],
        lanes: int,
        key: int,
        policy: str | None,
        passes: int | None,
        max_repeats: int | None,
    ) -> None:
        self.lanes = lanes
        self._orders = orders
        self._key = key
        self._segments = _segments(orders, frequencies, policy, passes, max_repeats)

    @property
    def total(self) -> int | None:
        """Number of chunks until the source ends; None when it never does."""
        return self._segments[-1].stop

    @property
    def first_pass(self) -> int:
        interleaving = self._segments[0].interleaving
        return max(interleaving.place(order.count - 1, d) + 1 for d, order in enumerate(self._orders))

    def chunk(self, lane: int, position: int) -> Chunk | None:
        g = position * self.lanes + (int(_assignment(self._key, position, self.lanes)[lane]) if self.lanes > 1 else 0)
        segment = next((s for s in self._segments if s.stop is None or g < s.stop), None)
        if segment is None:
            return None
        dataset = segment.interleaving.dataset(g - segment.start)
        visit = segment.base[dataset] + segment.interleaving.before(g - segment.start, dataset)
        return self._orders[dataset].chunk(visit)


@functools.lru_cache(maxsize=256)
def _assignment(key: int, block: int, lanes: int) -> IntArray:
    """Which of a block's chunks each lane gets; lanes that run side by side ask for the same blocks."""
    return permutation(derive(key, block), lanes)


class _Segment:
    """Global chunks [start, stop) with one interleaving; ``base`` counts what came before it."""

    def __init__(self, start: int, stop: int | None, interleaving: Interleaving, base: list[int]) -> None:
        self.start, self.stop, self.interleaving, self.base = start, stop, interleaving, base


def _segments(
    orders: Sequence[ChunkOrder],
    frequencies: Sequence[Fraction],
    policy: str | None,
    passes: int | None,
    max_repeats: int | None,
) -> list[_Segment]:
    interleaving = Interleaving(frequencies)
    none_yet = [0] * len(orders)
    if policy == "redistribute":
        return _redistributed(orders, frequencies)
    if policy == "repeat" and max_repeats is None:
        return [_Segment(0, None, interleaving, none_yet)]
    if policy == "stop" or max_repeats is not None:
        allowed = 1 + (max_repeats or 0)
        stop = min(interleaving.place(order.count * allowed, d) for d, order in enumerate(orders))
    else:
        stop = max(interleaving.place(order.count * (passes or 1) - 1, d) + 1 for d, order in enumerate(orders))
    return [_Segment(0, stop, interleaving, none_yet)]


def _redistributed(orders: Sequence[ChunkOrder], frequencies: Sequence[Fraction]) -> list[_Segment]:
    unread = dict(enumerate(order.count for order in orders))
    segments: list[_Segment] = []
    start, base = 0, [0] * len(orders)
    while unread:
        interleaving = Interleaving([f if d in unread else Fraction(0) for d, f in enumerate(frequencies)])
        length = min(interleaving.place(n - 1, d) + 1 for d, n in unread.items())
        segments.append(_Segment(start, start + length, interleaving, list(base)))
        for dataset in list(unread):
            taken = interleaving.before(length, dataset)
            base[dataset] += taken
            unread[dataset] -= taken
            if unread[dataset] == 0:
                del unread[dataset]
        start += length
    return segments
