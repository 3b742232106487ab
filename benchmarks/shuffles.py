"""How well three loaders mix one corpus: the chance that two rows of a global batch come from one shard.

    python -m benchmarks.shuffles       1,024 shards of 8,192 rows, global batches of 256 rows, each against a uniform shuffle

Orders are simulated from what their documentation says of them, as numbers of rows; nothing is read.

zephon      this loader's plan over the listing of such a corpus, the rows of an interval of each lane in permuted order
py1e        Mosaic StreamingDataset: the shards, permuted, are divided among canonical nodes; each row of a node then moves by a
            random distance within the block size, and a global batch takes as many rows from each node
window      Grain: each reader has its own shards, in permuted order, and permutes each window of consecutive rows
"""

from __future__ import annotations

import json

import numpy as np

from benchmarks.plan_scale import listing
from zephon import StaticMixtureWorkSource
from zephon.types import IntArray

SHARDS, ROWS, ROW_BYTES = 1024, 8192, 9216  # rows of 2,048 tokens and as many bytes of text as they come from
BATCH, LANES = 256, 64


def neighbours(batches: IntArray) -> float:
    """Of int64[batches, rows] with the shard of each row: the chance that two rows of a batch have the same one."""
    ordered = np.sort(batches, axis=1)
    same = total = 0
    for batch in ordered:
        counts = np.bincount(batch)
        same += int((counts * (counts - 1)).sum())
        total += len(batch) * (len(batch) - 1)
    return same / total


def uniform() -> float:
    """The same of a uniform shuffle of all rows."""
    return (ROWS - 1) / (SHARDS * ROWS - 1)


def zephon(buffer: int = 256, chunk_bytes: int = 1 << 18) -> float:
    """Each lane's interval has the rows of the buffer, at least eight chunks; all its rows leave in permuted order."""
    dataset = listing("corpus", SHARDS, ROWS * ROW_BYTES)
    plan = StaticMixtureWorkSource([dataset], exhausted_policy="repeat", chunk_bytes=chunk_bytes).plan(LANES)
    chunks = max(8 * (1 << 18) // chunk_bytes, -(-buffer * ROW_BYTES // chunk_bytes))
    generator = np.random.default_rng(0)
    lanes = []
    for lane in range(LANES):
        rows: list[IntArray] = []
        for interval in range(4):
            own = []
            for at in range(chunks):
                chunk = plan.chunk(lane, interval * chunks + at)
                assert chunk is not None
                own += [shard for shard, start, stop in chunk.ranges for _ in range(round((stop - start) / ROW_BYTES))]
            rows.append(generator.permutation(np.array(own, np.int64)))
        lanes.append(np.concatenate(rows))
    return neighbours(_dealt(lanes))


def py1e(nodes: int = 64, block: int = 1 << 18) -> float:
    """StreamingDataset's default block size for this many canonical nodes."""
    generator = np.random.default_rng(0)
    whole = np.repeat(generator.permutation(SHARDS), ROWS)
    lanes = []
    for part in np.array_split(whole, nodes):
        # A row moves by at most half of what the block is longer than its shard.
        reach = max(0, block - ROWS) / 2
        place = np.arange(len(part)) + generator.uniform(-reach, reach, len(part))
        lanes.append(part[np.argsort(place)])
    return neighbours(_dealt(lanes))


def window(size: int) -> float:
    """One reader for each lane."""
    generator = np.random.default_rng(0)
    lanes = []
    for shards in np.array_split(generator.permutation(SHARDS), LANES):
        rows = np.repeat(shards, ROWS)
        lanes.append(np.concatenate([generator.permutation(rows[at : at + size]) for at in range(0, 8 * ROWS, size)]))
    return neighbours(_dealt(lanes))


def _dealt(lanes: list[IntArray]) -> IntArray:
    """Global batches: as many rows of each lane, as far as all lanes go."""
    each = BATCH // len(lanes)
    steps = min(len(lane) for lane in lanes) // each
    return np.concatenate([lane[: steps * each].reshape(steps, each) for lane in lanes], axis=1)


def measure() -> dict[str, float]:
    """Each order's chance as a multiple of that of a uniform shuffle."""
    chances = {
        "zephon, 256 rows a lane": zephon(),
        "zephon, 1,024 rows a lane": zephon(1024),
        "py1e, blocks of 262,144 rows": py1e(),
        "py1e, one canonical node": py1e(1, 4_000_000),
        "window of 256 rows a reader": window(256),
        "window of 1,024 rows a reader": window(1024),
        "window of 16,384 rows a reader": window(16384),
    }
    return {name: chance / uniform() for name, chance in chances.items()}


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
