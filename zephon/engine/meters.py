"""Meters that are always on: a few additions per chunk and per batch, each field written by one thread only.

waiting.loop           the training loop waited for a batch
waiting.workers        packing waited for a chunk to be read and tokenized
waiting.backpressure   packing waited because enough batches were ready
working.<stage>        seconds of work by stage, summed over workers
"""

from __future__ import annotations

import collections
import dataclasses
import time
from typing import TypedDict

from zephon.batch import SampleBatch
from zephon.engine.program import ChunkResult


class Snapshot(TypedDict):
    """Plain values, see `Pipeline.metrics_snapshot`."""

    seconds: float
    first_batch_seconds: float
    batches: int
    tokens: dict[str, int]
    documents: dict[str, int]
    bytes: dict[str, int]
    padding: int
    dropped: dict[str, int]
    waiting: dict[str, float]
    working: dict[str, float]
    bottleneck: str


@dataclasses.dataclass(eq=False)
class Meters:
    """Counts since the pipeline was made. ``names`` are its datasets."""

    names: tuple[str, ...]
    documents: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    bytes: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    tokens: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    dropped: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    waiting: dict[str, float] = dataclasses.field(default_factory=lambda: {"loop": 0.0, "workers": 0.0, "backpressure": 0.0})
    working: dict[str, float] = dataclasses.field(default_factory=dict)
    padding: int = 0
    batches: int = 0
    began: float = 0.0
    first: float = 0.0
    last: float = 0.0

    def backpressure(self, seconds: float) -> None:
        """Packing has waited this long because enough batches were ready."""
        self.waiting["backpressure"] += seconds

    def chunk(self, work: ChunkResult, waited: float) -> None:
        """A chunk has reached its lane, which waited this long for it."""
        self.waiting["workers"] += waited
        for stage, seconds in work.seconds.items():
            self.working[stage] = self.working.get(stage, 0.0) + seconds
        if work.columns is not None:
            name = self.names[work.columns.dataset]
            self.documents[name] += len(work.columns)
            self.bytes[name] += work.size

    def batch(self, batch: SampleBatch, waited: float) -> None:
        """The training loop has received a batch, for which it waited this long."""
        now = time.perf_counter()
        if self.batches == 0:
            self.first = now  # waiting for the first batch is starting, not feeding
        else:
            self.waiting["loop"] += waited
        self.last = now
        self.batches += 1
        real = 0
        for name, count in batch.tokens.items():
            self.tokens[name] += count
            real += count
        ids = batch.fields.get("input_ids")
        if batch.starts is not None and ids is not None:
            self.padding += getattr(ids, "size", 0) - real
        for summary in batch.dropped:
            self.dropped[summary.reason] += summary.count

    def snapshot(self) -> Snapshot:
        return {
            "seconds": self.last - self.first if self.batches else 0.0,
            "first_batch_seconds": self.first - self.began if self.batches else 0.0,
            "batches": self.batches,
            "tokens": dict(self.tokens),
            "documents": dict(self.documents),
            "bytes": dict(self.bytes),
            "padding": self.padding,
            "dropped": dict(self.dropped),
            "waiting": dict(self.waiting),
            "working": dict(self.working),
            "bottleneck": self.bottleneck(),
        }

    def bottleneck(self) -> str:
        """One line: who waits for whom."""
        seconds = self.last - self.first
        if self.batches < 2 or seconds <= 0:
            return "nothing can be said before two batches"
        share = self.waiting["loop"] / seconds
        if share < 0.02:
            return f"the training loop is the bottleneck: it waited for data {share:.1%} of the time"
        own = max(seconds - self.waiting["workers"] - self.waiting["backpressure"], 0.0)
        stage = max(self.working, key=lambda name: self.working[name], default="read")
        if own > self.waiting["workers"]:
            stage = "pack, shuffle and batch"
        return f"the loader is the bottleneck, in stage {stage!r}: the training loop waited {share:.1%} of the time"
