"""Shards in memory: a document is a copy of a row."""

from __future__ import annotations

from zephon.io.formats.base import Documents, Shard


class Memory:
    name = "memory"

    def read(self, shard: Shard, start: int, stop: int) -> Documents:
        """Rows whose first byte lies in the range, when all rows are laid end to end; rows are row numbers."""
        assert shard.memory is not None
        rows, starts = shard.memory.rows, shard.memory.starts
        first, last = starts[:-1].searchsorted((start, stop)).tolist()
        size = int(starts[last] - starts[first])
        return Documents(list(range(first, last)), [dict(rows[i]) for i in range(first, last)], {}, (), size)
