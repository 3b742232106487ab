"""Packing with a planner: documents wait in a pool until the planner has finished their row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from zephon.ops.block import Block
from zephon.ops.op import Counting
from zephon.ops.packing.bins import Planner, Row
from zephon.ops.packing.pool import Pool
from zephon.types import IntArray


class Fitting(Counting):
    """A lane's state of first_fit, best_fit or best_fit_wrap. Empty behind a sentinel.

    Args:
        planner: decides.
        pool: holds.
        lengths: of a block's documents, int64[n].
        make: rows of pieces to a block.
    """

    def __init__(
        self,
        planner: Callable[[], Planner],
        pool: Pool,
        lengths: Callable[[Block], IntArray],
        make: Callable[[list[Row]], Block | None],
    ) -> None:
        super().__init__()
        self._new = planner
        self._planner = planner()
        self._pool, self._lengths, self._make = pool, lengths, make

    def push(self, block: Block, lengths: IntArray | None = None) -> Block | None:
        lengths = self._lengths(block) if lengths is None else lengths
        first = self._pool.hold(block, lengths)
        chosen = np.flatnonzero(lengths)
        self._planner.add(zip((chosen + first).tolist(), [0] * len(chosen), lengths[chosen].tolist(), strict=True))
        return self._make(self._planner.full())

    def flush(self, *, final: bool) -> Block | None:
        rows = [*self._planner.full(), *self._planner.rest()]
        self._planner = self._new()
        return self._make(rows)


class Admission:
    """Which documents are packed at all.

    Args:
        name: of the op, for reasons and errors.
        length: tokens of a row.
        least: documents with fewer tokens are left out.
        oversized: longer documents are "dropped", an "error", or "kept".
    """

    def __init__(self, name: str, length: int, least: int, oversized: str) -> None:
        self.name, self.length, self.least, self.oversized = name, length, least, oversized

    def all_of(self, lengths: IntArray) -> bool:
        """Whether nothing is left out."""
        if len(lengths) == 0 or (self.least == 1 and self.oversized == "kept"):
            return bool(lengths.all())
        return bool(lengths.min() >= self.least and (self.oversized == "kept" or lengths.max() <= self.length))

    def split(self, lengths: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """(admitted, too short, too long) as indexes."""
        short = lengths < self.least
        long = (lengths > self.length) & (self.oversized != "kept")
        return np.flatnonzero(~short & ~long), np.flatnonzero(short), np.flatnonzero(long & ~short)


def group_numbers(names: Sequence[str], homogeneity: str, groups: dict[str, str]) -> list[int]:
    """The group of each dataset, numbered in order of first appearance."""
    if homogeneity == "none":
        return [0] * len(names)
    labels = list(names) if homogeneity == "full" else [groups[name] for name in names]
    order = list(dict.fromkeys(labels))
    return [order.index(label) for label in labels]
