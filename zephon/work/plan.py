"""The plan of a fixed mixture: which chunk a lane reads at a position, until the source ends. See `zephon.work.source`."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from zephon.work.chunks import ChunkOrder
from zephon.work.mixture import Interleaving
from zephon.work.segments import Segment, SegmentedPlan


class StaticMixturePlan(SegmentedPlan):
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
        weights: Sequence[Fraction] | None,
    ) -> None:
        super().__init__(orders, _segments(orders, frequencies, policy, passes, max_repeats), lanes, key)
        self._weights = weights

    def mixture_at(self, position: int) -> Sequence[Fraction] | None:
        return self._weights


def _segments(
    orders: Sequence[ChunkOrder],
    frequencies: Sequence[Fraction],
    policy: str | None,
    passes: int | None,
    max_repeats: int | None,
) -> list[Segment]:
    interleaving = Interleaving(frequencies)
    none_yet = [0] * len(orders)
    if policy == "redistribute":
        return _redistributed(orders, frequencies)
    if policy == "repeat" and max_repeats is None:
        return [Segment(0, None, interleaving, none_yet)]
    if policy == "stop" or max_repeats is not None:
        allowed = 1 + (max_repeats or 0)
        stop = min(interleaving.place(order.count * allowed, d) for d, order in enumerate(orders))
    else:
        stop = max(interleaving.place(order.count * (passes or 1) - 1, d) + 1 for d, order in enumerate(orders))
    return [Segment(0, stop, interleaving, none_yet)]


def _redistributed(orders: Sequence[ChunkOrder], frequencies: Sequence[Fraction]) -> list[Segment]:
    unread = dict(enumerate(order.count for order in orders))
    segments: list[Segment] = []
    start, base = 0, [0] * len(orders)
    while unread:
        interleaving = Interleaving([f if d in unread else Fraction(0) for d, f in enumerate(frequencies)])
        length = min(interleaving.place(n - 1, d) + 1 for d, n in unread.items())
        segments.append(Segment(start, start + length, interleaving, list(base)))
        for dataset in list(unread):
            taken = interleaving.before(length, dataset)
            base[dataset] += taken
            unread[dataset] -= taken
            if unread[dataset] == 0:
                del unread[dataset]
        start += length
    return segments
