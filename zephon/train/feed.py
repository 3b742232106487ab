"""RunSpec -> zephon.Pipeline -> StepBatch: the loader as the trainer sees it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np
import torch

from zephon.batch import SampleBatch
from zephon.cursor import SavedState
from zephon.errors import ConfigError, ZephonError
from zephon.io import Dataset
from zephon.io.named import refuse_overlap
from zephon.ops.tokenizers import Tokenizer, load_tokenizer
from zephon.pipeline.continued import change_after
from zephon.pipeline.experiment import datasets_of, held_out_of, held_out_pipeline, pipeline
from zephon.pipeline.pipeline import Pipeline
from zephon.run.calibration import read_calibration, write_calibration
from zephon.run.directory import RunDir
from zephon.run.ledger import sequence_digest
from zephon.spec.experiment import RunSpec
from zephon.train.distributed import Membership
from zephon.train.session import Job
from zephon.train.steering import steering_of
from zephon.train.step import Packed, StepBatch, TokenRows, concatenate
from zephon.types import IGNORE_INDEX, Counts, DropSummary, sum_by_reason


class Material:
    """What a process needs of the disk for its part of a job: made once, and the same in every membership of the process."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self._spec.tokenizer.id, backend=self._spec.tokenizer.backend)

    @functools.cached_property
    def datasets(self) -> list[Dataset]:
        return datasets_of(self._spec)

    @functools.cached_property
    def held_out(self) -> list[Dataset]:
        return held_out_of(self._spec)


def job_for(
    spec: RunSpec,
    run: RunDir,
    membership: Membership,
    *,
    log: Callable[[str], None],
    fence: Callable[[], None],
    material: Material | None = None,
) -> Job:
    """The job of a run directory, where the mixture is measured once for all ranks and attempts.

    Raises:
        ConfigError: a dataset or tokenizer is not there, or numbers do not fit together.
    """
    material = material or Material(spec)
    tokenizer = material.tokenizer
    datasets, held_out_datasets = _same_everywhere(spec, material, membership)
    steering = steering_of(spec, run, membership, fence)
    decisions = [] if steering is None else steering.decisions
    first = pipeline(spec, tokenizer, dp_rank=membership.dp_rank, dp_size=membership.dp_size, datasets=datasets)
    counts = _calibration(run, first, membership)

    def built(rank: int, size: int) -> Pipeline:
        calibrated = pipeline(spec, tokenizer, dp_rank=rank, dp_size=size, datasets=datasets, decisions=decisions)
        calibrated.calibrate(counts)
        return calibrated

    def feed(rank: int, size: int) -> PipelineFeed:
        return PipelineFeed(built(rank, size))

    vocab_size = spec.model.vocab_size or tokenizer.vocab_size
    if vocab_size < tokenizer.vocab_size:
        raise ConfigError(
            f"model.vocab_size={vocab_size} is smaller than the {tokenizer.vocab_size} ids of tokenizer {tokenizer.id!r}",
            follows="token ids would have no row in the embedding",
            remedy=f"leave model.vocab_size out, or give at least {tokenizer.vocab_size}",
        )

    def held_out(rank: int, size: int) -> PipelineFeed:
        built = held_out_pipeline(spec, tokenizer, dp_rank=rank, dp_size=size, datasets=held_out_datasets)
        return PipelineFeed(built)

    evaluates = spec.trainer.eval_every is not None
    if evaluates:
        refuse_overlap(datasets, held_out_datasets)
        # Built once at the start, so that what is wrong with it is an error now and not at the first evaluation.
        held_out_pipeline(spec, tokenizer, dp_rank=membership.dp_rank, dp_size=membership.dp_size, datasets=held_out_datasets)
    return Job(
        spec=spec,
        run=run,
        feed=feed,
        held_out=held_out if evaluates else None,
        vocab_size=vocab_size,
        log=log,
        fence=fence,
        steering=steering,
        begins=lambda state, steps: change_after(built(membership.dp_rank, membership.dp_size).definition, state, steps),
    )


def _same_everywhere(spec: RunSpec, material: Material, membership: Membership) -> tuple[list[Dataset], list[Dataset]]:
    """The datasets to train on and to evaluate on, whose files are the same for every rank, as is the tokenizer's definition.

    Raises:
        ConfigError: a rank sees other files than rank 0, or none.
    """
    listed: list[Dataset] = []
    held_out: list[Dataset] = []
    failure: ZephonError | None = None
    try:
        listed = material.datasets
        held_out = material.held_out if spec.trainer.eval_every is not None else []
    except ZephonError as error:
        failure = error
    seen = [
        (f"{where}.{dataset.name}", dataset.identity, len(dataset.shards), dataset.size)
        for where, datasets in (("data.datasets", listed), ("trainer.eval_data", held_out))
        for dataset in datasets
    ]
    gathered = membership.exchange((failure, seen, material.tokenizer.identity, material.tokenizer.ids_sha256))
    for rank, (unlisted, theirs, definition, ids) in enumerate(gathered):
        if unlisted is not None:
            unlisted.add_note(f"raised on rank {rank}")
            raise unlisted
        if definition != gathered[0][2]:
            raise ConfigError(
                f"tokenizer.id={spec.tokenizer.id}: rank {rank} has another definition ({definition[:12]}) than rank 0 "
                f"({gathered[0][2][:12]})",
                follows="the ranks would train on other token ids",
                remedy="give every node the same tokenizer files under this path",
            )
        if ids != gathered[0][3]:
            raise ConfigError(
                f"tokenizer.id={spec.tokenizer.id}: rank {rank} gets other ids for the same text than rank 0",
                follows="the ranks would train on other token ids",
                remedy="install the same version of the package tokenizers on every node",
            )
        for (name, identity, files, size), (_, other, *counts) in zip(gathered[0][1], theirs, strict=True):
            if other != identity:
                raise ConfigError(
                    f"{name}: rank {rank} sees {counts[0]} files of {counts[1]:,} units together, "
                    f"and rank 0 sees {files} of {size:,}" + (", with other names or sizes" if counts == [files, size] else ""),
                    follows="the ranks would work on batches of different data",
                    remedy="give every node the same files under this path",
                )
    return listed, held_out


class PipelineFeed:
    """A pipeline as a ``Feed``: joins a step's microbatches, which the trainer splits again as its reduction needs."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._per_lane = pipeline.world.per_lane
        self._begun: SavedState | None = None

    def restore(self, state: SavedState) -> None:
        self._pipeline.restore(state)

    def dropped_at_end(self, state: SavedState | None) -> list[tuple[int, DropSummary]]:
        self.close()
        if (state := state or self._begun) is not None:
            self._pipeline.restore(state)
        return self._pipeline.dropped_at_end()

    def steps(self) -> Iterator[StepBatch]:
        self._begun = self._pipeline.checkpoint()
        definition = self._pipeline.definition
        size = definition.required_batching.microbatch_size
        plan = definition.world.microbatches(definition.division.dp_group_id, size)
        for batches in self._pipeline.steps():
            parts: list[TokenRows] = []
            digests: dict[int, bytes] = {}
            tokens: dict[str, int] = {}
            trained: dict[str, int] = {}
            packed = Packed()
            dropped: list[tuple[int, DropSummary]] = []
            step = 0
            for batch in batches:
                step = batch.step
                rows = _rows_of(batch)
                _, first, last = plan[batch.microbatch[0]]
                parts.append(rows.padded(last - first))  # where a lane has ended, its slots stay in their places
                for slot, row in zip(batch.slots.tolist(), np.asarray(batch.fields["input_ids"]), strict=False):
                    digests[slot] = sequence_digest(row)
                for (name, count), labels in zip(batch.tokens.items(), _trained(rows, len(batch.tokens)), strict=True):
                    tokens[name] = tokens.get(name, 0) + count
                    trained[name] = trained.get(name, 0) + labels
                packed += _packed(batch)
                lane = int(batch.slots[0]) // self._per_lane if batch.real_rows else -1
                dropped += [(lane, summary) for summary in batch.dropped]
            yield StepBatch(
                step=step,
                rows=concatenate(parts),
                digests=digests,
                state=self._pipeline.checkpoint(),
                by_dataset=tokens,
                trained=trained,
                packed=packed,
                # Ranks that share a lane all read it and drop the same documents; the one with its first slot reports them.
                dropped=sum_by_reason(summary for lane, summary in dropped if lane * self._per_lane in digests),
            )

    def close(self) -> None:
        self._pipeline.close()


def _rows_of(batch: SampleBatch) -> TokenRows:
    tensors = batch.to_training(return_labels=True, document_mask_loss=True)  # as attention is masked
    datasets = torch.from_numpy(np.ascontiguousarray(batch.datasets()[:, 1:]))
    positions = tensors.get("positions")
    return TokenRows(input_ids=tensors["input_ids"], labels=tensors["labels"], positions=positions, datasets=datasets)


def _trained(rows: TokenRows, datasets: int) -> list[int]:
    """Trained labels of each dataset."""
    assert rows.datasets is not None
    counts: list[int] = torch.bincount(rows.datasets[rows.labels != IGNORE_INDEX], minlength=datasets).tolist()
    return counts


def _packed(batch: SampleBatch) -> Packed:
    ids, n = np.asarray(batch.fields["input_ids"]), batch.real_rows
    segments = 0 if batch.starts is None else int(batch.starts.offsets[n] - batch.starts.offsets[0])
    return Packed(n, segments, n * ids.shape[1] - int(batch.used[:n].sum()))


def _calibration(run: RunDir, pipeline: Pipeline, membership: Membership) -> Counts:
    """Tokens and bytes of each dataset's sample: from the run directory, or measured by rank 0 and stored there."""
    counts: Counts | ZephonError | None = None
    if membership.first:
        try:
            before = read_calibration(run)
            counts = dict(pipeline.calibrate(before))  # what was measured stays; a dataset that has joined is added
            if counts != before:
                write_calibration(run, {**(before or {}), **counts})
        except ZephonError as error:
            counts = error
    counts = membership.broadcast(counts)
    if isinstance(counts, ZephonError):
        raise counts
    assert counts is not None
    return counts
