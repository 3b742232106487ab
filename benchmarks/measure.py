"""How figures are taken: in child processes on pinned cores, loader and floor by turns, best of several rounds."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil


def cost(run: Callable[[], int]) -> float:
    """Seconds of processor per million tokens of a function that returns how many it made, with all work that it starts."""
    begun = time.process_time()
    tokens = run()
    settle()
    return (time.process_time() - begun) / tokens * 1e6


def clock(run: Callable[[], int]) -> float:
    """Seconds by the clock per million tokens of a stream that goes on: what is made ahead meanwhile is paid by what was."""
    begun = time.perf_counter()
    tokens = run()
    return (time.perf_counter() - begun) / tokens * 1e6


def settle() -> None:
    """Waits until nothing in this process works any more, as a loader's read-ahead does."""
    spent, since = time.process_time(), time.perf_counter()
    while time.perf_counter() - since < 0.02:  # longer than the process may be kept from its cores
        time.sleep(0.001)
        now = time.process_time()
        if now - spent > 0.0002:  # this loop itself takes less
            since = time.perf_counter()
        spent = now


def pairs(floor: Callable[[], int], loader: Callable[[], int], rounds: int) -> dict[str, float]:
    """Processor time of both by turns: the median ratio over the pairs, and the best of all rounds (Mtok/s per core).

    On a shared machine the clock says more about the neighbours.
    """
    taken = [(cost(floor), cost(loader)) for _ in range(rounds)]
    return {
        "ratio": statistics.median(baseline / loaded for baseline, loaded in taken),
        "floor": 1 / min(baseline for baseline, _ in taken),
        "loader": 1 / min(other for _, other in taken),
    }


def in_child(case: str, cores: int, **arguments: Any) -> dict[str, Any]:
    """Runs a function of `benchmarks.cases` in a fresh process on the first cores that this one may use."""
    command = [sys.executable, "-m", "benchmarks.cases", case, json.dumps({"cores": cores, **arguments})]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"})
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def pin(cores: int) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def resident_mb() -> float:
    """Memory of this process now, in MB."""
    return psutil.Process().memory_info().rss / 1e6
