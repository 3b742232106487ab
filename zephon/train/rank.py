"""What a rank is to its run: whose log lines it writes, and whether it may still write the run's files."""

from __future__ import annotations

import os
import sys

from zephon.run.directory import RunDir
from zephon.run.generation import check_newest, read_generation


class Fence:
    """Compares this worker's generation with ``generation.json``, which the coordinator writes before a new one starts."""

    def __init__(self, run: RunDir, attempt: int, generation: int) -> None:
        self._run, self._order = run, (attempt, generation)

    def check(self) -> None:
        """Raises Superseded when a newer generation exists, of this attempt or of a later one."""
        newest = read_generation(self._run)
        if newest is not None:
            check_newest(self._order, newest.order)


def log(text: str) -> None:
    """Writes a line to this rank's log."""
    rank = os.environ.get("RANK", "0")
    print(f"[rank {rank}] {text}", file=sys.stderr, flush=True)
