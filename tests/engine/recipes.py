"""Small pipelines for the engine's tests: importable by name, so that child processes find the functions."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from zephon import Dataset, InMemoryShard, Pipeline, StaticMixtureWorkSource

TEXTS = ["".join(chr(97 + (i * 7 + j) % 26) for j in range(20 + i * 13 % 90)) for i in range(300)]


def source(chunk_bytes: int = 400) -> StaticMixtureWorkSource:
    rows = [{"text": text, "n": i} for i, text in enumerate(TEXTS)]
    dataset = Dataset.from_dict("d", {"a": InMemoryShard(rows[:140]), "b": InMemoryShard(rows[140:])})
    return StaticMixtureWorkSource([dataset], seed=1, exhausted_policy="repeat", chunk_bytes=chunk_bytes)


def small(dp_degree: int = 1, dp_group_id: int = 0, microbatch_size: int = 2, function: Any = None, **options: Any) -> Pipeline:
    """Four lanes, global batch 8, rows of 32 bytes."""
    fixed = {"canonical_replicas": 4, "global_batch_size": 8, "max_workers": 2, "flush_every_k_chunks": 3}
    pipeline = Pipeline(source()).options(**{**fixed, "dp_degree": dp_degree, "dp_group_id": dp_group_id, **options})
    if function is not None:
        pipeline.map_transform(function)
    return (
        pipeline.tokenize(tokenizer_id="bytes", field="text", special_tokens="eos")
        .pack_flat(32, algorithm="wrap")
        .shuffle(20, seed=5)
        .batch(microbatch_size)
    )


def upper(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "text": document["text"].upper()}


def fails(document: dict[str, Any]) -> dict[str, Any]:
    if document["n"] == 37:
        raise KeyError("thirty-seven")
    return document


def kills(document: dict[str, Any]) -> dict[str, Any]:
    """Kills its process on one document."""
    if document["n"] == 37:
        os.kill(os.getpid(), signal.SIGKILL)
    return document


def exits(document: dict[str, Any]) -> dict[str, Any]:
    """Ends its process by itself on one document."""
    if document["n"] == 37:
        os._exit(3)
    return document


def kills_once(document: dict[str, Any]) -> dict[str, Any]:
    """Kills its process on one document, the first time that anybody sees it."""
    if document["n"] == 37:
        try:
            Path(os.environ["ZEPHON_TEST_MARK"]).touch(exist_ok=False)
        except FileExistsError:
            return document
        os.kill(os.getpid(), signal.SIGKILL)
    return document


def slow(document: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.002)
    return document


class OnlyThere:
    """Unpickles in the process that made it and nowhere else."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (_there, (os.getpid(),))


def _there(pid: int) -> OnlyThere:
    if pid != os.getpid():
        raise LookupError("only there")
    return OnlyThere()


def only_there(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "other": OnlyThere()}


def documents(**options: Any) -> Pipeline:
    """Documents as they are, with an object that no other process can read."""
    return Pipeline(source()).options(max_workers=2, **options).map_transform(only_there).batch(2)
