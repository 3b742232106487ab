"""Rows that are already in memory. Their size is that of their strings, bytes and arrays, so that chunks have about the
same amount of text as those of a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from zephon.io.formats.base import Documents
from zephon.types import IntArray

if TYPE_CHECKING:
    from zephon.io.dataset import Dataset


def row_sizes(rows: Sequence[Mapping[str, Any]]) -> IntArray:
    """int64[rows]: each row's size in bytes, at least 1."""
    return np.array([max(1, sum(_size(value) for value in row.values())) for row in rows], np.int64)


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, (bytes, bytearray)):
        return len(value)
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, Mapping):
        return sum(_size(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return sum(_size(item) for item in value)
    return 8


class Memory:
    name = "memory"

    def read(self, dataset: Dataset, shard: int, start: int, stop: int) -> Documents:
        """Rows whose first byte lies in the range, when all rows are laid end to end; rows are row numbers."""
        begins = _begins(dataset, shard)
        first, last = np.searchsorted(begins, (start, stop)).tolist()
        rows = dataset.memory[shard]
        return Documents(list(range(first, last)), [dict(rows[i]) for i in range(first, last)], {})


def _begins(dataset: Dataset, shard: int) -> IntArray:
    # Kept beside the frozen dataset; the entry holds the dataset itself, so its id cannot be reused meanwhile.
    held = dataset.__dict__.setdefault("_begins", {})
    if shard not in held:
        sizes = row_sizes(dataset.memory[shard])
        held[shard] = np.cumsum(sizes) - sizes
    begins: IntArray = held[shard]
    return begins
