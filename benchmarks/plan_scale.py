"""A plan of 100 TB: a million shards in five datasets, 512 lanes, from a listing that was made up; nothing is read.

python -m benchmarks.plan_scale          seconds and memory to build it, microseconds of a chunk at 0 and at 10^9
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import psutil

from zephon import Dataset, StaticMixtureWorkSource, TokenEstimation
from zephon.io.formats.base import format_named
from zephon.io.storage import LOCAL
from zephon.work import Plan

SHARDS, BYTES, LANES, BATCH_TOKENS = 1_000_000, 10**14, 512, 4 << 20
WEIGHTS = {"web": 0.7, "code": 0.15, "books": 0.1, "papers": 0.049, "rare": 0.001}


def listing(name: str, shards: int, size: int) -> Dataset:
    """A dataset of so many JSON Lines shards of this size in the mean."""
    sizes = size + np.arange(shards, dtype=np.int64) * 7919 % 1001 - 500
    names = tuple(f"part-{number:07}.jsonl" for number in range(shards))
    return Dataset(name, format_named("jsonl"), names, sizes, f"/data/{name}", LOCAL, files=tuple(f"{name}/{n}" for n in names))


def listings(shards: int = SHARDS, size: int = BYTES) -> list[Dataset]:
    """Datasets whose sizes differ by a thousand."""
    parts = {"web": 0.6, "code": 0.2, "books": 0.1, "papers": 0.0994, "rare": 0.0006}
    return [listing(name, max(1, int(shards * part)), size // shards) for name, part in parts.items()]


def microseconds(plan: Plan, position: int, lanes: int, count: int = 64) -> float:
    """Of processor for a chunk, over so many positions from there on of 16 lanes, as a rank asks for them."""
    own = range(0, lanes, max(1, lanes // 16))
    begun = time.process_time()
    for at in range(position, position + count):
        for lane in own:
            plan.chunk(lane, at)
    return (time.process_time() - begun) / (count * len(own)) * 1e6


def measure(shards: int = SHARDS, size: int = BYTES, lanes: int = LANES) -> dict[str, float]:
    """Seconds, by the clock and of processor, to plan a listing; MB of both; microseconds of a chunk at both ends."""
    process = psutil.Process()
    before = process.memory_info().rss
    datasets = listings(shards, size)
    begun, spent = time.perf_counter(), time.process_time()
    source = StaticMixtureWorkSource(datasets, WEIGHTS, exhausted_policy="repeat", token_estimation=TokenEstimation(0.25))
    source.describe()  # what the fingerprint needs
    plan = source.plan(lanes, None, BATCH_TOKENS)
    plan.chunk(0, 0)
    built, worked = time.perf_counter(), time.process_time()
    # By turns, and the best of them: on a shared machine the first would pay for what both need.
    pairs = [(microseconds(plan, 200 * k, lanes), microseconds(plan, 10**9 + 200 * k, lanes)) for k in range(5)]
    return {
        "plan_s": built - begun,
        "plan_cpu_s": worked - spent,
        "mb": (process.memory_info().rss - before) / 1e6,
        "near_us": min(near for near, _ in pairs),
        "far_us": min(far for _, far in pairs),
    }


if __name__ == "__main__":
    print(json.dumps(measure(*map(int, sys.argv[1:]))))
