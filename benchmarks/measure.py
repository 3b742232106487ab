"""How figures are taken: in child processes on pinned cores, loader and floor by turns, best of several rounds."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil


@dataclasses.dataclass(frozen=True)
class Cost:
    """Seconds of wall clock and of processor per million tokens."""

    wall: float
    cpu: float


def cost(run: Callable[[], int]) -> Cost:
    """Of a function that returns how many tokens it made, with all the work that goes on behind it."""
    wall, cpu = time.perf_counter(), time.process_time()
    tokens = run()
    idle = settle()
    return Cost((time.perf_counter() - wall - idle) / tokens * 1e6, (time.process_time() - cpu) / tokens * 1e6)


def clock(run: Callable[[], int]) -> float:
    """Seconds by the clock per million tokens of a stream that goes on: what is made ahead meanwhile is paid by what was."""
    begun = time.perf_counter()
    tokens = run()
    return (time.perf_counter() - begun) / tokens * 1e6


def settle() -> float:
    """Waits until nothing in this process works any more, as a loader's read-ahead does; returns how long nothing did."""
    spent, since = time.process_time(), time.perf_counter()
    while (idle := time.perf_counter() - since) < 0.02:  # longer than the process may be kept from its cores
        time.sleep(0.001)
        now = time.process_time()
        if now - spent > 0.0002:  # this loop itself takes less
            since = time.perf_counter()
        spent = now
    return idle


def pairs(floor: Callable[[], int], loader: Callable[[], int], rounds: int) -> dict[str, float]:
    """Takes both by turns; ratios are medians over the pairs, speeds the best of all rounds (Mtok/s).

    On a shared machine the wall clock says more about the neighbours; the ratio of processor time is what can be trusted.
    """
    taken = [(cost(floor), cost(loader)) for _ in range(rounds)]
    return {
        "floor": 1 / min(f.wall for f, _ in taken),
        "loader": 1 / min(one.wall for _, one in taken),
        "wall": statistics.median(f.wall / one.wall for f, one in taken),
        "cpu": statistics.median(f.cpu / one.cpu for f, one in taken),
        "floor_cpu": 1 / min(f.cpu for f, _ in taken),
        "loader_cpu": 1 / min(one.cpu for _, one in taken),
    }


def in_child(case: str, cores: int, **arguments: Any) -> dict[str, Any]:
    """Runs a function of `benchmarks.cases` in a fresh process on the first cores that this one may use."""
    command = [sys.executable, "-m", "benchmarks.cases", case, json.dumps({"cores": cores, **arguments})]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"})
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def pin(cores: int) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def resident_mb() -> float:
    """Memory of this process now, in MB."""
    return psutil.Process().memory_info().rss / 1e6
