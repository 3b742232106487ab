"""The laws as one helper: a recipe makes a pipeline, and every way of running it must deliver the same global batches.

A recipe is called as ``recipe(dp_degree=..., dp_group_id=..., microbatch_size=..., **options)`` and returns a pipeline
whose lanes and global batch size do not depend on these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from zephon import Pipeline, SampleBatch
from zephon.types import Ragged

Recipe = Callable[..., Pipeline]
Step = tuple[str, ...]
"""The digests of a step's sequences in slot order."""

STATE_LIMIT = 128


def row_digest(batch: SampleBatch, i: int) -> str:
    """Of everything a row carries: all columns, segment starts, used length."""
    digest = hashlib.sha256()
    for name in sorted(batch.fields):
        column = batch.fields[name]
        value = column[i]
        data = np.ascontiguousarray(value).tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
        digest.update(name.encode() + data)
    if isinstance(batch.starts, Ragged):
        digest.update(batch.starts[i].tobytes())
    digest.update(int(batch.used[i]).to_bytes(8, "little"))
    return digest.hexdigest()


class Job:
    """All ranks of one size, run side by side in this process.

    With ``addresses`` the digests of rows are also of the documents that they are made of.
    """

    def __init__(
        self, recipe: Recipe, dp: int = 1, *, states: Sequence[Any] | None = None, addresses: bool = True, **options: Any
    ) -> None:
        self._addresses = addresses
        self.pipelines = [recipe(dp_degree=dp, dp_group_id=rank, **options) for rank in range(dp)]
        if states is not None:
            for pipeline in self.pipelines:
                pipeline.restore(states)
        self.iterators: list[Iterator[Iterator[SampleBatch]]] = [pipeline.steps() for pipeline in self.pipelines]

    def step(self) -> Step | None:
        """The next step's digests by slot; None when a rank has no more."""
        rows: dict[int, str] = {}
        forwards = set()
        for iterator in self.iterators:
            batches = list(next(iterator, ()))
            if not batches:
                return None
            forwards.add(len(batches))
            for batch in batches:
                assert batch.microbatch[1] == len(batches)
                for i, spans in enumerate(batch.documents()):
                    slot = int(batch.slots[i])
                    assert slot not in rows, f"slot {slot} was delivered twice"
                    rows[slot] = row_digest(batch, i)
                    if self._addresses:
                        rows[slot] += hashlib.sha256(repr(spans).encode()).hexdigest()
        assert len(forwards) == 1, f"ranks ran different numbers of forwards: {forwards}"
        assert sorted(rows) == list(range(self.pipelines[0].world.global_batch_size)), f"slots {sorted(rows)}"
        return tuple(rows[slot] for slot in sorted(rows))

    def steps(self, count: int) -> list[Step]:
        taken = []
        while len(taken) < count and (step := self.step()) is not None:
            taken.append(step)
        return taken

    def states(self) -> list[dict[str, Any]]:
        return [pipeline.checkpoint() for pipeline in self.pipelines]

    def close(self) -> None:
        for pipeline in self.pipelines:
            pipeline.close()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def reference(recipe: Recipe, steps: int) -> list[Step]:
    """The uninterrupted one-rank run, without threads."""
    with Job(recipe, runner="inline", prefetch_batches=0) as job:
        return job.steps(steps)


def assert_same_data(recipe: Recipe, expected: list[Step], *, sizes: Sequence[int] = (2,), **options: Any) -> None:
    """Every size, with these options, delivers the expected steps."""
    for dp in sizes:
        with Job(recipe, dp, **options) as job:
            _equal(job.steps(len(expected)), expected, f"dp={dp}, {options}")


def assert_restarts(
    recipe: Recipe, expected: list[Step], *, sizes: Sequence[int] = (1, 2), every: int = 1, **options: Any
) -> None:
    """One run with a restart every few steps, each at the next size: the union is the uninterrupted run.

    On the way: states are small, do not grow, do not move by reading ahead, and survive a save right after a load.
    """
    got: list[Step] = []
    states = None
    turn = 0
    while len(got) < len(expected):
        with Job(recipe, sizes[turn % len(sizes)], states=states, **options) as job:
            if states is not None:
                _equal_lanes(job.states(), states)
            got += job.steps(min(every, len(expected) - len(got)))
            states = job.states()
            assert max(len(c) for state in states for c in state["lanes"].values()) <= STATE_LIMIT
        turn += 1
        assert turn <= 2 * len(expected) + 2, "no step was delivered after a restart"
    _equal(got, expected, f"restarts every {every} at sizes {sizes}")


def _equal_lanes(now: list[dict[str, Any]], then: list[dict[str, Any]]) -> None:
    merged = {lane: cursor for state in then for lane, cursor in state["lanes"].items()}
    for state in now:
        for lane, cursor in state["lanes"].items():
            assert cursor == merged[lane], f"saving right after a load changed lane {lane}"


def _equal(got: list[Step], expected: list[Step], how: str) -> None:
    for number, (a, b) in enumerate(zip(got, expected, strict=False)):
        assert a == b, (
            f"step {number} differs in slots {[i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]}: {how}"
        )
    assert len(got) == len(expected), f"{len(got)} steps instead of {len(expected)}: {how}"
