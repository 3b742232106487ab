"""A source of steps that needs no loader: rows follow from (step, slot) alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from zephon.cursor import Cursor
from zephon.seeds import below, derive, raw
from zephon.spec.experiment import RunSpec
from zephon.train.step import StepBatch, TokenRows
from zephon.types import DropSummary
from zephon.world import World

VOCAB = 61


def spec(**trainer: Any) -> RunSpec:
    """A tiny experiment; keyword arguments override, dotted names with two underscores: ``optimizer__lr=0.1``."""
    data: dict[str, Any] = {
        "name": "tiny",
        "global_batch_size": 16,
        "data": {"datasets": {"none": {"path": "memory://none"}}},
        "pipeline": {"context_length": 16},
        "lanes": {"count": 8},
        "model": {"dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "vocab_size": VOCAB},
        "optimizer": {"warmup_steps": 2, "lr": 1e-2},
        "checkpoint": {"every": 1000, "background": False},
        "trainer": {"steps": 6, "microbatch_size": 2, "device": "cpu", "tensorboard": False},
    }
    for name, value in trainer.items():
        *groups, last = name.split("__")
        place = data
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = value
    return RunSpec.from_dict(data)


def row(step: int, slot: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, positions) of one sequence, int64[length]: documents of 3 to 12 tokens."""
    values = raw(derive(7, "row", step, slot), length + 8)
    positions, at = np.zeros(length, np.int64), 0
    for size in 3 + below(values[length:], 10):
        end = min(length, at + int(size))
        positions[at:end] = np.arange(end - at)
        at = end
    positions[at:] = np.arange(length - at)
    return below(values[:length], VOCAB), positions


@dataclass
class SyntheticFeed:
    """Implements ``zephon.train.step.Feed``. ``masked`` names slots whose labels are all ignored."""

    spec: RunSpec
    rank: int
    size: int
    masked: tuple[int, ...] = ()
    next_step: int = 0
    last_step: int = 10**9

    def restore(self, state: dict[str, Any]) -> None:
        assert sorted(state["lanes"]) == list(range(self.spec.lanes.count))
        self.next_step = state["step"]

    def steps(self) -> Iterator[StepBatch]:
        while self.next_step < self.last_step:
            self.next_step += 1
            yield self.batch(self.next_step - 1)

    def dropped_at_end(self, state: dict[str, Any] | None) -> list[tuple[int, DropSummary]]:
        return []

    def close(self) -> None:
        pass

    def batch(self, step: int) -> StepBatch:
        division = World(self.spec.lanes.count, self.spec.global_batch_size, self.size, "uneven")
        slots = list(division.slots(self.rank))
        pairs = [row(step, slot, self.spec.pipeline.context_length + 1) for slot in slots]
        tokens, positions = (torch.from_numpy(np.stack(part)) for part in zip(*pairs, strict=True))
        labels = tokens[:, 1:].clone()
        for index, slot in enumerate(slots):
            # Uneven numbers of trained tokens, so that means of means would show.
            labels[index, : slot % 5] = -100
            if slot in self.masked:
                labels[index] = -100
        halves = torch.zeros_like(labels, dtype=torch.int32)  # of each row: dataset a, then dataset b
        halves[:, halves.shape[1] // 2 :] = 1
        learned = torch.bincount(halves[labels != -100], minlength=2).tolist()
        lanes = {share.lane: Cursor(delivered=step + 1).encode() for share in division.shares(self.rank)}
        return StepBatch(
            step=step,
            rows=TokenRows(input_ids=tokens[:, :-1], labels=labels, positions=positions[:, :-1], datasets=halves),
            digests={
                slot: hashlib.sha256(pair[0].astype("<i4").tobytes()).digest() for slot, pair in zip(slots, pairs, strict=True)
            },
            trained=dict(zip(("a", "b"), learned, strict=True)),
            state={"version": 1, "fingerprint": "synthetic", "step": step + 1, "lanes": lanes},
        )
