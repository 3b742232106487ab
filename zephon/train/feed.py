"""RunSpec -> zephon.Pipeline -> StepBatch: the loader as the trainer sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import zephon
from zephon.io import Dataset
from zephon.ledger import sequence_digest
from zephon.rundir import RunDir
from zephon.spec import RunSpec
from zephon.train.data import Rows, StepBatch, joined
from zephon.train.session import Job
from zephon.work import StaticMixtureWorkSource


def job_for(spec: RunSpec, run: RunDir, *, tell: Callable[[str], None], fence: Callable[[], None]) -> Job:
    """The job of a run directory: what a worker needs beside a membership."""
    return Job(
        spec=spec,
        run=run,
        feed=lambda rank, size: PipelineFeed(pipeline(spec, dp_rank=rank, dp_size=size)),
        vocab_size=spec.model.vocab_size or vocabulary(spec),
        tell=tell,
        fence=fence,
    )


def pipeline(spec: RunSpec, *, dp_rank: int, dp_size: int) -> zephon.Pipeline:
    """The experiment's pipeline for one data-parallel rank."""
    data, loader = spec.data, spec.loader
    datasets = [Dataset.from_path(name, one.path, fmt=one.format) for name, one in data.datasets.items()]
    source = StaticMixtureWorkSource(
        datasets,
        {name: one.weight for name, one in data.datasets.items()},
        seed=data.seed,
    )
    raise NotImplementedError(source, loader)


class PipelineFeed:
    """Adapts a pipeline to ``Feed``."""

    def __init__(self, pipeline: zephon.Pipeline) -> None:
        self._pipeline = pipeline

    def restore(self, state: dict[str, Any]) -> None:
        self._pipeline.restore(state)

    def steps(self) -> Iterator[StepBatch]:
        for batches in self._pipeline.steps():
            parts: list[Rows] = []
            digests: dict[int, bytes] = {}
            step = 0
            for batch in batches:
                step = batch.step
                tensors = batch.to_training(return_labels=True)
                parts.append(Rows(input_ids=tensors["input_ids"], labels=tensors["labels"], positions=tensors.get("positions")))
                whole = np.asarray(batch.to_training()["input_ids"])
                for row, slot in zip(whole, batch.slots, strict=False):
                    digests[int(slot)] = sequence_digest(row)
            yield StepBatch(step=step, rows=joined(parts), digests=digests, state=self._pipeline.checkpoint())


def vocabulary(spec: RunSpec) -> int:
    raise NotImplementedError(spec.tokenizer.id)
