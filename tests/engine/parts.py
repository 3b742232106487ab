"""Small parts for unit tests of the engine: a plan that is a list of chunks, and a program over it."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from zephon import Dataset, InMemoryShard
from zephon.engine.program import Program
from zephon.ops.block import Block, of_documents
from zephon.ops.pack import PackFlat
from zephon.types import Chunk, Columns, Ragged, ShardRange


@dataclasses.dataclass(frozen=True)
class ListedPlan:
    """Every lane has the same chunks, each a stretch of the one shard; after the last of them the lane ends."""

    sizes: Sequence[int]

    def chunk(self, lane: int, position: int) -> Chunk | None:
        if position >= len(self.sizes):
            return None
        ends = [0, *itertools.accumulate(self.sizes)]
        return Chunk(0, 0, position, (ShardRange(0, ends[position], ends[position + 1]),))

    @property
    def first_pass(self) -> int:
        return len(self.sizes)


def tokens(columns: Columns) -> Columns:
    """A stage: each byte of the text is a token."""
    assert columns.records is not None
    rows = [np.frombuffer(record["text"].encode(), np.uint8) for record in columns.records]
    return dataclasses.replace(columns, records=None, fields={"input_ids": Ragged.of(rows)})


def program(chunks: Sequence[Sequence[str]], *, flush_every: int = 2, length: int = 4, **fields: Any) -> Program:
    """Chunks given as texts, packed by ``wrap`` into rows of ``length`` bytes."""
    dataset = Dataset.from_dict("d", {"s": InMemoryShard([{"text": text} for chunk in chunks for text in chunk])})
    plan = ListedPlan([sum(map(len, chunk)) for chunk in chunks])
    packing = [PackFlat(max_length=length, algorithm="wrap")]
    return Program(
        **{
            "datasets": [dataset],
            "plan": plan,
            "stages": [tokens],
            "accumulators": packing,
            "flush_every": flush_every,
            **fields,
        }
    )


def documents(*texts: str, dataset: int = 0, first: int = 0) -> Columns:
    """Documents as the stage `tokens` gives them; their rows are numbered from ``first``."""
    records = [{"text": text} for text in texts]
    rows = np.arange(first, first + len(texts))
    return tokens(Columns(dataset, np.zeros(len(texts), np.int64), rows, records))


def block(*texts: str) -> Block:
    return of_documents(documents(*texts), 1)


def until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Waits for a condition; whether it came true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


def quiet() -> None:
    """No thread of a loader that an earlier test has forgotten is left."""
    gc.collect()
    assert until(lambda: not any(thread.name.startswith("zephon-") for thread in threading.enumerate()))


def texts(rows: Any) -> list[str]:
    """The text of packed rows, from the fields of a batch or a block's gathered fields."""
    return [bytes(row.astype(np.uint8)).decode() for row in rows["input_ids"]]
