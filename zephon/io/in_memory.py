"""Rows in memory, as a shard. Their size is that of their strings, bytes and arrays, so that chunks hold about as much text as
those of a file."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zephon.types import IntArray


@dataclasses.dataclass(frozen=True)
class InMemoryShard:
    """Rows as dicts of fields, for tests and small data."""

    rows: Sequence[Mapping[str, Any]]

    @functools.cached_property
    def starts(self) -> IntArray:
        """int64[rows + 1]: where each row begins when all are laid end to end, in bytes; a row has at least 1."""
        sizes = [max(1, sum(_size(value) for value in row.values())) for row in self.rows]
        return np.cumsum([0, *sizes], dtype=np.int64)

    @property
    def size(self) -> int:
        """Bytes of all rows."""
        return int(self.starts[-1])


def _size(value: object) -> int:
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
