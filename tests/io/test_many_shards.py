"""Thousands of small shards: memory stays flat and descriptors few, measured in a process of its own."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

SHARDS = {"jsonl": 2000, "parquet": 600}
ROWS = [f"document {i} " + "abcdefghij" * 20 for i in range(10)]


def write(folder: Path, kind: str) -> None:
    for i in range(SHARDS[kind]):
        if kind == "jsonl":
            lines = (orjson.dumps({"text": f"{i} {row}"}) + b"\n" for row in ROWS)
            (folder / f"{i:05}.jsonl").write_bytes(b"".join(lines))
        else:
            pq.write_table(pa.table({"text": ROWS}), folder / f"{i:05}.parquet")


def read_all(folder: str, limit: int) -> None:
    """What the child does: one pass with at most ``limit`` descriptors; tells its memory and descriptors on the way."""
    import psutil

    from zephon import Dataset, Pipeline, StaticMixtureWorkSource

    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    dataset = Dataset.from_path("d", folder)
    source = StaticMixtureWorkSource([dataset], chunk_bytes=2 * int(dataset.sizes[0]))
    pipeline = Pipeline(source).options(max_workers=2, prefetch_bytes=1 << 20)
    pipeline.tokenize(tokenizer_id="bytes", field="text", special_tokens="eos").pack_flat(512, algorithm="wrap").batch(8)
    me, found = psutil.Process(), []
    for number, batch in enumerate(pipeline):
        if number % 10 == 0:
            found.append((batch.tokens["d"], me.memory_info().rss, me.num_fds()))
    print(json.dumps([len(dataset.shards), found]))


@pytest.mark.parametrize("kind", sorted(SHARDS))
def test_f01_memory_and_descriptors_stay_flat_over_thousands_of_shards(tmp_path: Path, kind: str) -> None:
    write(tmp_path, kind)
    done = subprocess.run(
        [sys.executable, "-m", "tests.io.test_many_shards", str(tmp_path), "128"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shards, found = json.loads(done.stdout)
    assert shards == SHARDS[kind]
    assert len(found) >= 20
    early, late = (max(rss for _, rss, _ in part) for part in (found[: len(found) // 5], found[-len(found) // 5 :]))
    held = sum(path.stat().st_size for path in tmp_path.iterdir()) if kind == "parquet" else 0  # decoded groups, up to a limit
    assert late - held < 1.10 * early, found
    assert max(fds for _, _, fds in found) < 100


if __name__ == "__main__":
    read_all(sys.argv[1], int(sys.argv[2]))
