"""Packing with a planner: documents wait in a pool until the planner has finished their row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from zephon.ops.block import Block
from zephon.ops.packing.bins import Planner, Row
from zephon.ops.packing.pool import Pool
from zephon.types import IntArray


class Fitting:
    """A lane's state of first_fit, best_fit or best_fit_wrap for one group. Empty after a sentinel.

    Args:
        open_planner: makes a planner, which decides.
        pool: holds the documents.
        make: rows of slices to a block.
    """

    def __init__(self, open_planner: Callable[[], Planner], pool: Pool, make: Callable[[list[Row]], Block | None]) -> None:
        self._open_planner = open_planner
        self._planner = open_planner()
        self._pool, self._make = pool, make

    def push(self, block: Block, lengths: IntArray) -> Block | None:
        first = self._pool.hold(block, lengths)
        filled = np.flatnonzero(lengths)
        self._planner.add(zip((filled + first).tolist(), [0] * len(filled), lengths[filled].tolist(), strict=True))
        return self._make(self._planner.full())

    def flush(self, *, final: bool) -> Block | None:
        rows = [*self._planner.full(), *self._planner.remainder()]
        self._planner = self._open_planner()
        return self._make(rows)
