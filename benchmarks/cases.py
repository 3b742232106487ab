"""What is measured. Each function runs in a process of its own and returns plain numbers."""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import clock, cost, pairs, pin, resident_mb, settle

_BEGUN = time.perf_counter()


def pipeline(folder: str, *, lanes: int = 1, tokenize: bool = True, chunk_bytes: int = 262144, **options: Any) -> Any:
    """The pipeline of the announcement, endless."""
    from zephon import Dataset, Pipeline, StaticMixtureWorkSource

    source = StaticMixtureWorkSource(
        [Dataset.from_path("text", folder)],
        seed=1,
        shuffle_within_shard=False,
        exhausted_policy="repeat",
        chunk_bytes=chunk_bytes,
    )
    chain = Pipeline(source).options(canonical_replicas=lanes, **options)
    if tokenize:
        chain.tokenize(tokenizer_id="gpt2", field="text", special_tokens="eos")
    return chain.pack_flat(2048, algorithm="wrap").shuffle().batch(8)


def take(batches: Any, tokens: int) -> int:
    """Takes batches until they hold so many tokens."""
    done = 0
    for batch in batches:
        done += batch.fields["input_ids"].size
        if done >= tokens:
            break
    return done


def beside_floor(folder: str, cores: int, options: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The floor, the loader and its batches, with all that is made once made."""
    from benchmarks.floor import Floor

    pin(cores)
    floor = Floor(sorted(Path(folder).glob("*.jsonl")), 2048, cores)
    loader = pipeline(folder, **options)
    batches = iter(loader)
    take(batches, 6_000_000)  # more than any runner has ready
    floor.run(2_000_000)
    settle()
    return floor, loader, batches


def text(folder: str, cores: int, tokens: int, rounds: int, **options: Any) -> dict[str, float]:
    """Raw text against the floor by processor time; between rounds the loader stands still with its read-ahead full."""
    floor, loader, batches = beside_floor(folder, cores, options)
    compared = pairs(lambda: floor.run(tokens), lambda: take(batches, tokens), rounds)
    loader.close()
    return compared


def stream(folder: str, cores: int, tokens: int, rounds: int, **options: Any) -> dict[str, float]:
    """Raw text against the floor by the clock; what lay ready is taken before, so that as much lies ready after as before."""
    floor, loader, batches = beside_floor(folder, cores, options)
    seconds = []
    for _ in range(rounds):
        settle()
        baseline = clock(lambda: floor.run(tokens))
        take(batches, 6_000_000)
        seconds.append((baseline, clock(lambda: take(batches, tokens))))
    loader.close()
    return {
        "ratio": statistics.median(baseline / loaded for baseline, loaded in seconds),
        "floor": 1 / min(baseline for baseline, _ in seconds),
        "loader": 1 / min(loaded for _, loaded in seconds),
    }


def tokens(folder: str, cores: int, tokens: int) -> dict[str, float]:
    """Pretokenized Parquet: Mtok/s by wall clock and by processor time, the best of five rounds."""
    pin(cores)
    loader = pipeline(folder, tokenize=False)
    batches = iter(loader)
    take(batches, tokens)
    wall, cpu = [], []
    for _ in range(5):
        begun, spent = time.perf_counter(), time.process_time()
        done = take(batches, tokens)
        wall.append(done / (time.perf_counter() - begun) / 1e6)
        cpu.append(done / (time.process_time() - spent) / 1e6)
    loader.close()
    return {"wall": max(wall), "cpu": max(cpu)}


def first(folder: str, cores: int) -> dict[str, float]:
    """Seconds from the start of this process to its first batch."""
    pin(cores)
    loader = pipeline(folder)
    next(iter(loader))
    figures = {"seconds": time.perf_counter() - _BEGUN, "cpu": time.process_time()}
    loader.close()
    return figures


def state(folder: str, cores: int) -> dict[str, float]:
    """Bytes a lane and milliseconds to take a state, with batches under way."""
    pin(cores)
    loader = pipeline(folder, lanes=8, global_batch_size=64)
    batches = iter(loader)
    for _ in range(50):
        next(batches)
    spent = []
    for _ in range(20):
        begun = time.perf_counter()
        saved = loader.checkpoint()
        spent.append((time.perf_counter() - begun) * 1e3)
        next(batches)
    loader.close()
    return {"bytes": max(len(cursor) for cursor in saved["lanes"].values()), "ms": max(spent)}


def restore(folder: str, cores: int, step: int, lanes: int) -> dict[str, float]:
    """Seconds to restore a state in the middle of a flush interval and deliver the first batch; tokenizer built before."""
    from zephon.cursor import Cursor
    from zephon.ops.tokenizers import load_tokenizer

    pin(cores)
    load_tokenizer("gpt2").encode(["warm"])
    loader = pipeline(folder, lanes=lanes)
    saved = loader.checkpoint()
    position = step * loader.definition.chunks_an_interval
    cursor = Cursor(position=position, carried_chunks=1, carried_tokens=100, delivered=200, tokens=(step * 8 * 2048,)).encode()
    begun, spent = time.perf_counter(), time.process_time()
    loader.restore({**saved, "step": step, "lanes": dict.fromkeys(range(lanes), cursor)})
    next(iter(loader))
    figures = {"seconds": time.perf_counter() - begun, "cpu": time.process_time() - spent}
    loader.close()
    return figures


def lanes(folder: str, cores: int, lanes: int, tokens: int) -> dict[str, float]:
    """Processor seconds per million tokens and resident memory with many lanes on one rank."""
    from zephon.ops.tokenizers import load_tokenizer

    pin(cores)
    load_tokenizer("gpt2").encode(["warm"])
    before = resident_mb()
    loader = pipeline(folder, lanes=lanes)
    batches = iter(loader)
    take(batches, lanes * 16 * 2048)
    settle()
    # At least one flush interval of every lane, else only what lies ready is taken.
    spent = cost(lambda: take(batches, max(tokens, lanes * 1_000_000)))
    figures = {"cpu": spent, "mb": resident_mb() - before}
    loader.close()
    return figures


def row_groups(folder: str, cores: int, lines: str, tokens: int) -> dict[str, float]:
    """Processor time of text in Parquet over that of text in JSON Lines, and what Arrow holds at most."""
    import pyarrow

    pin(cores)
    loaders = [pipeline(lines), pipeline(folder)]
    batches = [iter(loader) for loader in loaders]
    for one in batches:
        take(one, tokens)  # each row group is decoded once
    settle()
    taken = [(cost(lambda: take(batches[1], tokens)), cost(lambda: take(batches[0], tokens))) for _ in range(3)]
    for loader in loaders:
        loader.close()
    ratio = statistics.median(parquet / jsonl for parquet, jsonl in taken)
    return {"ratio": ratio, "mb": pyarrow.default_memory_pool().max_memory() / 1e6}


def meters(folder: str, cores: int) -> dict[str, float]:
    """The meters' own processor time as a share of the loader's, by calling them as often as it does."""
    from zephon.engine.meters import Meters
    from zephon.engine.program import ChunkResult

    pin(cores)
    loader = pipeline(folder, runner="inline", prefetch_batches=0)
    batches = list(itertools.islice(loader, 200))
    spent = time.process_time()
    take(iter(loader), 200 * 8 * 2048)
    whole = time.process_time() - spent
    loader.close()
    own = Meters(("text",))
    work = ChunkResult(None, 0, {"read": 0.001, "tokenize": 0.001})
    spent = time.process_time()
    for batch in batches:
        own.batch(batch, 0.0)
        own.chunk(work, 0.0)
    return {"share": (time.process_time() - spent) / whole}


if __name__ == "__main__":
    name, arguments = sys.argv[1], json.loads(sys.argv[2])
    print(json.dumps(globals()[name](**arguments)))
