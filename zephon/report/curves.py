"""The numbers of a run's steps as columns, and fewer points of a curve that keep its extremes.

A curve of 100,000 steps is drawn with some hundred points: of each stretch of steps the first, the lowest, the highest and the
last one, so that a single bad step is still seen (M4: Jugel et al., VLDB 2014).
"""

from __future__ import annotations

import dataclasses
import itertools
from array import array
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from zephon.fastjson import Json
from zephon.types import IntArray

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Curves:
    """Columns of one number a step, the later one where a step was trained twice.

    Args:
        step: int64[n], optimizer steps done, from 1 and ascending.
        columns: float64[n] by dotted name, such as ``loss`` and ``seconds.data``; NaN where a step's line has none.
        skipped: why the weights did not change in a step, by steps done after it.
    """

    step: IntArray
    columns: Mapping[str, Floats]
    skipped: Mapping[int, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, lines: Iterable[Json]) -> Curves:
        """From lines of metrics.jsonl in the order written. What is no number has no column."""
        steps = array("q")
        rows: dict[str, array[int]] = {}
        values: dict[str, array[float]] = {}
        skipped: dict[int, str] = {}
        for row, line in enumerate(lines):
            steps.append(line["step"])
            skipped.pop(line["step"] + 1, None)
            if why := line.get("skipped"):
                skipped[line["step"] + 1] = str(why)
            for name, value in _numbers(line):
                rows.setdefault(name, array("q")).append(row)
                values.setdefault(name, array("d")).append(value)
        written = np.array(steps, np.int64)
        step, newest = np.unique(written[::-1], return_index=True)
        keep = len(written) - 1 - newest
        columns: dict[str, Floats] = {}
        for name, column in values.items():
            full = np.full(len(written), np.nan)
            full[np.array(rows[name], np.int64)] = np.array(column, np.float64)
            columns[name] = full[keep]
        return cls(step + 1, columns, skipped)

    def __len__(self) -> int:
        return len(self.step)

    def column(self, name: str) -> Floats:
        """A column; all NaN where no line has it."""
        return self.columns.get(name, np.full(len(self), np.nan))

    def group(self, prefix: str) -> dict[str, Floats]:
        """All columns below a name, by the rest of theirs: ``group("shares")``."""
        return {name[len(prefix) + 1 :]: column for name, column in self.columns.items() if name.startswith(f"{prefix}.")}

    def stretches(self, name: str) -> list[tuple[int, int, int]]:
        """(first row, row after the last one, value) of consecutive rows in which a column of whole numbers is the same."""
        column = np.nan_to_num(self.column(name)).astype(np.int64)
        edges = [0, *(np.flatnonzero(np.diff(column)) + 1).tolist(), len(column)]
        return [(first, last, int(column[first])) for first, last in itertools.pairwise(edges) if last > first]


def extremes(values: Floats, points: int) -> IntArray:
    """Ascending rows of at most about ``points`` values, the highest and the lowest finite one of each stretch among them.

    A row without a number stays where it is the first or last of its stretch, so that a gap is still a gap.
    """
    count = len(values)
    if count <= points:
        return np.arange(count)
    edges = np.linspace(0, count, max(points // 4, 1) + 1).astype(np.int64)
    begins, ends = edges[:-1], edges[1:] - 1
    finite = np.isfinite(values)
    low = _first_of(np.where(finite, values, np.inf), edges, np.minimum)
    high = _first_of(np.where(finite, values, -np.inf), edges, np.maximum)
    return np.unique(np.concatenate([begins, low, high, ends]))


def means(values: Floats, stretches: IntArray) -> Floats:
    """The mean of each stretch of rows, without rows that have no number; ``stretches`` are its edges."""
    finite = np.isfinite(values)
    sums = np.add.reduceat(np.where(finite, values, 0.0), stretches[:-1])
    counts = np.add.reduceat(finite.astype(np.int64), stretches[:-1])
    with np.errstate(invalid="ignore", divide="ignore"):
        averaged: Floats = sums / counts
    return averaged


def _first_of(values: Floats, edges: IntArray, best: np.ufunc) -> IntArray:
    """The first row of each stretch that has the stretch's best value."""
    wanted = np.repeat(best.reduceat(values, edges[:-1]), np.diff(edges))
    matches = np.flatnonzero(values == wanted)
    return matches[np.searchsorted(matches, edges[:-1])]


def _numbers(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield prefix + name, float(value)
        elif value in ("nan", "inf", "-inf"):
            yield prefix + name, float(str(value))
