"""The worker of this loader's arm: the product's own, which also notes each row that it trains on.

python -m experiments.recording --run URL --attempt N
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from zephon.cursor import SavedState
from zephon.run.directory import RunDir
from zephon.spec.experiment import RunSpec
from zephon.train.distributed import Membership
from zephon.train.feed import job_for
from zephon.train.session import Job
from zephon.train.step import Feed, StepBatch
from zephon.train.worker import arguments_of, main
from zephon.types import DropSummary

FILES = "rows-*.txt"  # of a run directory: a line a row, its step and its SHA-256


class Recorded:
    """Any feed, with its rows on record."""

    def __init__(self, feed: Feed, run: RunDir, rank: int) -> None:
        self._feed, self._file = feed, run.path(FILES.replace("*", f"{rank}-{os.getpid()}"))

    def restore(self, state: SavedState) -> None:
        self._feed.restore(state)

    def steps(self) -> Iterator[StepBatch]:
        for batch in self._feed.steps():
            with open(self._file, "a") as file:
                file.writelines(f"{batch.step} {digest.hex()}\n" for _, digest in sorted(batch.digests.items()))
            yield batch

    def dropped_at_end(self, state: SavedState | None) -> list[tuple[int, DropSummary]]:
        return self._feed.dropped_at_end(state)

    def close(self) -> None:
        self._feed.close()


def recorded(made: Job, feed: Callable[[int, int], Feed]) -> Job:
    """The same job with this feed, whose rows are noted."""
    return dataclasses.replace(made, feed=lambda rank, size: Recorded(feed(rank, size), made.run, rank))


def job(spec: RunSpec, run: RunDir, membership: Membership, **more: Any) -> Job:
    made = job_for(spec, run, membership, **more)
    return recorded(made, made.feed)


if __name__ == "__main__":
    sys.exit(main(*arguments_of("experiments.recording"), job=job))
