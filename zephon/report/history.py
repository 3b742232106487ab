"""What a run's ledger says of its data: legs and whether they agree, tokens of each dataset, documents that were dropped.

A *leg* is a stretch of lines that one membership wrote. After a crash, and where two runs are compared, several legs have the
same steps: their digests must agree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from zephon.run.ledger import Entry

ADDRESSES = 20  # of documents dropped for one reason, as many as the page names


@dataclasses.dataclass
class Leg:
    """Consecutive lines of one membership.

    Args:
        attempt, generation, world_size: which membership, and of how many ranks.
        first, last: steps, from 0.
        repeated: how many of its steps an earlier leg had trained too.
        differs: the first of these with another digest; None where all are equal.
    """

    attempt: int
    generation: int
    world_size: int
    first: int
    last: int
    repeated: int = 0
    differs: int | None = None

    @property
    def membership(self) -> tuple[int, int, int]:
        return self.attempt, self.generation, self.world_size


@dataclasses.dataclass
class Drop:
    """Documents dropped for one reason: how many, and the dataset, shard and row of the first of them."""

    reason: str
    count: int = 0
    addresses: list[tuple[str, str, int]] = dataclasses.field(default_factory=list)
    named: dict[str, int] = dataclasses.field(default_factory=dict)

    def add(self, count: int, first: Sequence[Sequence[Any]]) -> None:
        """What one step's line says; of at most eight documents it names all."""
        self.count += count
        for dataset, shard, row in first:
            self.named[str(dataset)] = self.named.get(str(dataset), 0) + 1
            if len(self.addresses) < ADDRESSES:
                self.addresses.append((str(dataset), str(shard), int(row)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class History:
    """A ledger, read once.

    Args:
        legs: in the order written.
        digests: of each step, as it was trained last.
        losses: of each step that has one.
        tokens: by dataset, of each step once.
        drops: by reason, of each step once.
    """

    legs: Sequence[Leg]
    digests: Mapping[int, str]
    losses: Mapping[int, float]
    tokens: Mapping[str, int]
    drops: Sequence[Drop]

    @property
    def repeated(self) -> int:
        return sum(leg.repeated for leg in self.legs)

    @property
    def differs(self) -> int | None:
        """The first step that two legs have with different digests."""
        return min((leg.differs for leg in self.legs if leg.differs is not None), default=None)

    def verdict(self) -> str:
        """Whether legs that have steps in common agree, as a sentence."""
        if not self.legs:
            return "There is no ledger yet."
        if (step := self.differs) is not None:
            return f"NOT EQUAL: step {step} is the first that was trained again with another global batch."
        if not self.repeated:
            return f"None of {len(self.digests):,} steps was trained twice, so there was nothing to compare within the run."
        return f"Equal: {self.repeated:,} steps were trained more than once, each time with the same global batch."


def history(entries: Iterable[Entry]) -> History:
    """Reads a ledger's lines in the order written."""
    legs: list[Leg] = []
    newest: dict[int, Entry] = {}
    for entry in entries:
        attempt, generation, size = (int(entry.rest.get(name) or 0) for name in ("attempt", "generation", "world_size"))
        if not legs or legs[-1].membership != (attempt, generation, size) or entry.step != legs[-1].last + 1:
            legs.append(Leg(attempt, generation, size, entry.step, entry.step))
        leg, before = legs[-1], newest.get(entry.step)
        leg.last = entry.step
        if before is not None:
            leg.repeated += 1
            if before.digest != entry.digest and leg.differs is None:
                leg.differs = entry.step
        newest[entry.step] = entry
    tokens: dict[str, int] = {}
    drops: dict[str, Drop] = {}
    for _, entry in sorted(newest.items()):
        for name, count in (entry.rest.get("tokens") or {}).items():
            tokens[name] = tokens.get(name, 0) + int(count)
        for reason, dropped in (entry.rest.get("dropped") or {}).items():
            drops.setdefault(reason, Drop(reason)).add(int(dropped["count"]), dropped.get("first") or [])
    return History(
        legs=legs,
        digests={step: entry.digest for step, entry in newest.items()},
        losses={step: loss for step, entry in newest.items() if isinstance(loss := entry.rest.get("loss"), float)},
        tokens=tokens,
        drops=[drops[reason] for reason in sorted(drops)],
    )


def compared(run: History, other: History) -> str:
    """Whether two runs agree on the steps that both have, as a sentence."""
    both = sorted(run.digests.keys() & other.digests.keys())
    if not both:
        return "They have no step in common."
    first = next((step for step in both if run.digests[step] != other.digests[step]), None)
    if first is not None:
        return f"NOT EQUAL: step {first} is the first of {len(both):,} common steps whose global batch differs."
    apart = max((abs(run.losses[s] - other.losses[s]) for s in both if s in run.losses and s in other.losses), default=None)
    losses = (
        "" if apart is None else f"; losses differ by {apart:.1e} at most" if apart else "; losses are equal to the last bit"
    )
    return f"Equal: all {len(both):,} common steps had the same global batch{losses}."
