"""Which slots of the global batch a rank owns: pure arithmetic, the same on every rank.

With L lanes and N sequences a step, each lane delivers q = N / L of them; slot = lane * q + j. Rank r of dp owns the
contiguous slots [floor(r N / dp), floor((r + 1) N / dp)):

    L=4, q=2        slots 0 1 | 2 3 | 4 5 | 6 7         lanes 0..3
    dp=2            rank 0: 0-3          rank 1: 4-7     whole lanes
    dp=8            one slot each                        two ranks share a lane
    dp=3            0-1    2-4    5-7                    uneven: rank 0 pads to the others' count
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from zephon.errors import ConfigError

ALLOW = ("whole", "shared", "uneven")


class Share(NamedTuple):
    """What a rank takes of one lane in every step: the lane's sequences ``first`` to ``last`` (exclusive)."""

    lane: int
    first: int
    last: int


class Microbatch(NamedTuple):
    """One forward of a rank: rows of one lane. ``last - first`` may be 0: only zero-weight rows."""

    lane: int
    first: int
    last: int


@dataclasses.dataclass(frozen=True)
class World:
    """The division of a global batch.

    Args:
        lanes: L, the number of logical streams.
        global_batch_size: N, sequences in one optimizer step.
        dp_degree: number of data-parallel ranks.
        allow: "whole" accepts only whole lanes per rank, "shared" also several ranks inside one lane, "uneven" everything.

    Raises:
        ConfigError: N is not a multiple of L, or the division needs more than ``allow`` permits.
    """

    lanes: int
    global_batch_size: int
    dp_degree: int = 1
    allow: str = "whole"

    def __post_init__(self) -> None:
        if self.lanes < 1 or self.global_batch_size < 1 or self.dp_degree < 1:
            raise ConfigError(
                f"lanes={self.lanes}, global_batch_size={self.global_batch_size}, dp_degree={self.dp_degree}: not all positive",
                follows="there would be nothing to deliver",
                remedy="give positive numbers",
            )
        if self.global_batch_size % self.lanes:
            low = self.global_batch_size // self.lanes * self.lanes
            raise ConfigError(
                f"global_batch_size={self.global_batch_size} is not a multiple of lanes={self.lanes}",
                follows="lanes would deliver different numbers of sequences in a step and drift apart",
                remedy=f"use a global batch of {max(low, self.lanes)} or {low + self.lanes}, or other lanes",
            )
        if self.kind not in ALLOW[: ALLOW.index(self.allow) + 1]:
            raise ConfigError(
                f"{self.dp_degree} data-parallel ranks cannot take {self.lanes} lanes as {self.allow!r} shares: "
                + (
                    f"more ranks than sequences ({self.global_batch_size})"
                    if self.kind == "impossible"
                    else f"this needs {self.kind!r}"
                ),
                follows=_PRICE[self.kind],
                remedy=f"use one of {', '.join(map(str, self.allowed()))} ranks"
                + ("" if self.kind == "impossible" else f", or allow it with lanes.allow={self.kind}"),
            )

    @property
    def per_lane(self) -> int:
        """q, the sequences that each lane delivers in a step."""
        return self.global_batch_size // self.lanes

    @property
    def kind(self) -> str:
        """The least permissive choice of ``allow`` that covers this division, or "impossible"."""
        return _kind(self.lanes, self.global_batch_size, self.dp_degree)

    def allowed(self) -> list[int]:
        """All data-parallel sizes that ``allow`` permits, ascending."""
        wanted = ALLOW[: ALLOW.index(self.allow) + 1]
        sizes = range(1, self.global_batch_size + 1)
        return [dp for dp in sizes if _kind(self.lanes, self.global_batch_size, dp) in wanted]

    def slots(self, rank: int) -> range:
        """The contiguous slots of one rank."""
        n, dp = self.global_batch_size, self.dp_degree
        return range(rank * n // dp, (rank + 1) * n // dp)

    def shares(self, rank: int) -> list[Share]:
        """The rank's slots by lane, in slot order."""
        slots, q = self.slots(rank), self.per_lane
        shares = []
        for lane in range(slots.start // q, (slots.stop - 1) // q + 1):
            first, last = max(slots.start - lane * q, 0), min(slots.stop - lane * q, q)
            shares.append(Share(lane, first, last))
        return shares

    def microbatches(self, rank: int, size: int) -> list[Microbatch]:
        """The rank's forwards of one step, at most ``size`` rows each and none across two lanes.

        Ranks with fewer forwards than the busiest one get empty ones at the end, so that all run the same number.
        """
        own = _cut(self.shares(rank), size)
        if self.kind == "uneven":
            most = max(len(_cut(self.shares(other), size)) for other in range(self.dp_degree))
            own += [Microbatch(own[-1].lane, 0, 0)] * (most - len(own))
        return own


def _kind(lanes: int, batch: int, dp: int) -> str:
    if dp > batch:
        return "impossible"
    if lanes % dp == 0:
        return "whole"
    return "shared" if dp % lanes == 0 and batch % dp == 0 else "uneven"


def _cut(shares: list[Share], size: int) -> list[Microbatch]:
    return [
        Microbatch(share.lane, first, min(first + size, share.last))
        for share in shares
        for first in range(share.first, share.last, size)
    ]


_PRICE = {
    "shared": "several ranks would read the same lane, each tokenizing all of it and keeping its part",
    "uneven": "ranks would own different numbers of sequences, and the short ones run zero-weight rows",
    "impossible": "some ranks would own no sequence at all",
}
