"""Which runner does a program's work."""

from __future__ import annotations

import os

from zephon.engine.program import ChunkGroup, ChunkResult, Program
from zephon.engine.runners.base import InlineRunner, Runner
from zephon.engine.runners.processes import ProcessRunner
from zephon.engine.runners.threads import ThreadRunner

ChunkRunner = Runner[ChunkGroup, list[ChunkResult | Exception]]


def make_runner(kind: str, workers: int | None, program: Program) -> ChunkRunner:
    """``threads``, ``process`` or ``inline``; no workers is inline too."""
    count = default_workers() if workers is None else workers
    if kind == "inline" or count == 0:
        return InlineRunner(program.work)
    if kind == "process":
        return ProcessRunner(count, program)
    return ThreadRunner(program.work, count)


def default_workers() -> int:
    """As many as this process may use, at most 8."""
    affinity = getattr(os, "sched_getaffinity", None)
    return min(8, len(affinity(0)) if affinity else os.cpu_count() or 1)
