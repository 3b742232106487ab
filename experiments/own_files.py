"""The control arm's worker: each rank has its own files, and everything else is the product's.

    python -m experiments.own_files --run URL --attempt N

Rank r of n reads ``files[r::n]`` of each dataset, as one stream with the packing and shuffling of the experiment. Resumed,
a rank skips as many rows of its stream as a rank of this number would have trained until then, which is the most that such
a loader can do: torchdata's and TorchTitan's refuse another number of ranks.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

from experiments.recording import recorded
from zephon.cursor import SavedState
from zephon.io import Dataset
from zephon.ops.tokenizers import load_tokenizer
from zephon.pipeline.experiment import datasets_of, pipeline
from zephon.run.calibration import read_calibration
from zephon.run.directory import RunDir
from zephon.spec.experiment import RunSpec
from zephon.train.distributed import Membership
from zephon.train.feed import PipelineFeed, job_for
from zephon.train.session import Job
from zephon.train.step import StepBatch
from zephon.train.worker import arguments_of, main
from zephon.types import DropSummary


class OwnFiles:
    """The steps of one rank, whose rows come from its own files alone."""

    def __init__(self, spec: RunSpec, run: RunDir, rank: int, size: int) -> None:
        self._rank, self._share, self._from = rank, spec.global_batch_size // size, 0
        alone = dataclasses.replace(
            spec,
            global_batch_size=self._share,
            lanes=dataclasses.replace(spec.lanes, count=1),
            trainer=dataclasses.replace(spec.trainer, microbatch_size=self._share),
        )
        own = [_own(dataset, rank, size) for dataset in datasets_of(spec)]
        built = pipeline(alone, load_tokenizer(spec.tokenizer.id), dp_rank=0, dp_size=1, datasets=own)
        if (counts := read_calibration(run)) is not None:
            built.calibrate(counts)
        self._feed = PipelineFeed(built)

    def restore(self, state: SavedState) -> None:
        self._from = state["step"]

    def steps(self) -> Iterator[StepBatch]:
        first = self._rank * self._share
        for batch in self._feed.steps():
            if batch.step < self._from:
                continue
            digests = {first + slot: digest for slot, digest in batch.digests.items()}
            state = {"step": batch.step + 1, "lanes": {self._rank: batch.state["lanes"][0]}}
            yield dataclasses.replace(batch, digests=digests, state=state)

    def dropped_at_end(self, state: SavedState | None) -> list[tuple[int, DropSummary]]:
        return []

    def close(self) -> None:
        self._feed.close()


def _own(dataset: Dataset, rank: int, size: int) -> Dataset:
    mine = slice(rank, None, size)
    parts = {"shards": dataset.shards[mine], "sizes": dataset.sizes[mine], "files": dataset.files[mine]}
    return dataclasses.replace(dataset, **parts)


def job(spec: RunSpec, run: RunDir, membership: Membership, **more: Any) -> Job:
    """The product's job with another feed."""
    return recorded(job_for(spec, run, membership, **more), lambda rank, size: OwnFiles(spec, run, rank, size))


if __name__ == "__main__":
    sys.exit(main(*arguments_of("experiments.own_files"), job=job))
