"""RunSpec -> zephon.Pipeline -> StepBatch: the loader as the trainer sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

import zephon
from zephon.cursor import SavedState
from zephon.errors import ConfigError, ZephonError
from zephon.io import Dataset
from zephon.io.named import dataset_named
from zephon.ops.tokenizers import Tokenizer, load_tokenizer
from zephon.run.calibration import read_calibration, write_calibration
from zephon.run.directory import RunDir
from zephon.run.ledger import sequence_digest
from zephon.spec.experiment import DatasetSpec, DataSpec, EvalDatasetSpec, RunSpec
from zephon.spec.fields import OnError
from zephon.train.distributed import Membership
from zephon.train.session import Job
from zephon.train.step import StepBatch, TokenRows, concatenate, sum_by_reason
from zephon.types import Counts, DropSummary
from zephon.work import StaticMixtureWorkSource, TokenEstimation

EVAL_CHUNK_BYTES = 16384  # at most; small, so that a small text reaches every lane


def job_for(
    spec: RunSpec, run: RunDir, membership: Membership, *, log: Callable[[str], None], fence: Callable[[], None]
) -> Job:
    """The job of a run directory, where the mixture is measured once for all ranks and attempts.

    Raises:
        ConfigError: a dataset or tokenizer is not there, or numbers do not fit together.
    """
    tokenizer = load_tokenizer(spec.tokenizer.id, backend=spec.tokenizer.backend)
    datasets = datasets_of(spec)
    first = pipeline(spec, tokenizer, dp_rank=membership.dp_rank, dp_size=membership.dp_size, datasets=datasets)
    counts = _calibration(run, first, membership)

    def feed(rank: int, size: int) -> PipelineFeed:
        built = pipeline(spec, tokenizer, dp_rank=rank, dp_size=size, datasets=datasets)
        built.calibrate(counts)
        return PipelineFeed(built)

    vocab_size = spec.model.vocab_size or tokenizer.vocab_size
    if vocab_size < tokenizer.vocab_size:
        raise ConfigError(
            f"model.vocab_size={vocab_size} is smaller than the {tokenizer.vocab_size} ids of tokenizer {tokenizer.id!r}",
            follows="token ids would have no row in the embedding",
            remedy=f"leave model.vocab_size out, or give at least {tokenizer.vocab_size}",
        )
    held_out = None
    if spec.trainer.eval_every is not None:
        held_out = lambda rank, size: PipelineFeed(held_out_pipeline(spec, tokenizer, dp_rank=rank, dp_size=size))  # noqa: E731
        # Built once at the start, so that a wrong path is an error now and not at the first evaluation.
        held_out_pipeline(spec, tokenizer, dp_rank=membership.dp_rank, dp_size=membership.dp_size)
    return Job(spec=spec, run=run, feed=feed, held_out=held_out, vocab_size=vocab_size, log=log, fence=fence)


def pipeline(
    spec: RunSpec, tokenizer: Tokenizer, *, dp_rank: int, dp_size: int, datasets: list[Dataset] | None = None
) -> zephon.Pipeline:
    """The experiment's pipeline for one data-parallel rank; ``datasets`` where they have been listed already."""
    data, shape = spec.data, spec.pipeline
    source = StaticMixtureWorkSource(
        datasets or datasets_of(spec),
        {name: dataset.weight for name, dataset in data.datasets.items()},
        seed=data.seed,
        shuffle_shards=data.shuffle_chunks,
        shuffle_within_shard=data.shuffle_documents,
        exhausted_policy=data.exhausted,
        token_estimation=TokenEstimation(primer=data.tokens_per_byte) if data.tokens_per_byte else None,
        chunk_bytes=data.chunk_bytes,
    )
    built = (
        _options(zephon.Pipeline(source), spec, dp_rank, dp_size)
        .options(flush_every_k_chunks=shape.flush_every_k_chunks or None)
        .options(on_error=_on_error(data), quarantine_budget=data.quarantine_budget)
        .tokenize(tokenizer, field=_field(data.datasets), special_tokens=spec.tokenizer.special_tokens)
        .pack_flat(shape.context_length, algorithm=shape.packing)
    )
    if shape.shuffle_buffer:
        built.shuffle(shape.shuffle_buffer, seed=shape.shuffle_seed)
    return built.batch(spec.trainer.microbatch_size)


def datasets_of(spec: RunSpec) -> list[Dataset]:
    """Lists the experiment's datasets, in the spec's order."""
    return [
        dataset_named(f"data.datasets.{name}", name, dataset.path, dataset.format)
        for name, dataset in spec.data.datasets.items()
    ]


def held_out_pipeline(spec: RunSpec, tokenizer: Tokenizer, *, dp_rank: int, dp_size: int) -> zephon.Pipeline:
    """The evaluation's text for one rank: every document once, in stored order, each dataset in proportion to its size."""
    if not spec.trainer.eval_data:
        raise ConfigError(
            f"trainer.eval_every={spec.trainer.eval_every} without trainer.eval_data",
            remedy="name held-out datasets: trainer.eval_data.NAME.path=..., or leave trainer.eval_every out",
        )
    data = spec.trainer.eval_data
    datasets = [
        dataset_named(f"trainer.eval_data.{name}", name, dataset.path, dataset.format) for name, dataset in data.items()
    ]
    share = min(dataset.size for dataset in datasets) // (4 * spec.lanes.count)
    source = StaticMixtureWorkSource(
        datasets, shuffle_shards=False, stop_after_passes=1, chunk_bytes=max(1, min(EVAL_CHUNK_BYTES, share))
    )
    return (
        _options(zephon.Pipeline(source), spec, dp_rank, dp_size)
        .tokenize(tokenizer, field=_field(data), special_tokens=spec.tokenizer.special_tokens)
        .pack_flat(spec.pipeline.context_length, algorithm="wrap")
        .batch(spec.trainer.microbatch_size)
    )


def _options(pipeline: zephon.Pipeline, spec: RunSpec, dp_rank: int, dp_size: int) -> zephon.Pipeline:
    return pipeline.options(
        runner=spec.loader.runner,
        max_workers=spec.loader.workers,
        prefetch_batches=spec.loader.prefetch_batches,
        isolated=spec.loader.isolated,
        dp_degree=dp_size,
        dp_group_id=dp_rank,
        canonical_replicas=spec.lanes.count,
        global_batch_size=spec.global_batch_size,
        lanes_allow=spec.lanes.allow,
        last_step="own",  # ranks tell each other in the exchange before each step
    )


class PipelineFeed:
    """A pipeline as a ``Feed``: joins a step's microbatches, which the trainer splits again as its reduction needs."""

    def __init__(self, pipeline: zephon.Pipeline) -> None:
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
        for batches in self._pipeline.steps():
            parts: list[TokenRows] = []
            digests: dict[int, bytes] = {}
            tokens: dict[str, int] = {}
            dropped: list[tuple[int, DropSummary]] = []
            step = 0
            for batch in batches:
                step = batch.step
                tensors = batch.to_training(return_labels=True, document_mask_loss=True)  # as attention is masked
                parts.append(
                    TokenRows(input_ids=tensors["input_ids"], labels=tensors["labels"], positions=tensors.get("positions"))
                )
                for slot, row in zip(batch.slots.tolist(), np.asarray(batch.fields["input_ids"]), strict=False):
                    digests[slot] = sequence_digest(row)
                for name, count in batch.tokens.items():
                    tokens[name] = tokens.get(name, 0) + count
                lane = int(batch.slots[0]) // self._per_lane if batch.real_rows else -1
                dropped += [(lane, summary) for summary in batch.dropped]
            yield StepBatch(
                step=step,
                rows=concatenate(parts),
                digests=digests,
                state=self._pipeline.checkpoint(),
                by_dataset=tokens,
                # Ranks that share a lane all read it and drop the same documents; the one with its first slot reports them.
                dropped=sum_by_reason(summary for lane, summary in dropped if lane * self._per_lane in digests),
            )

    def close(self) -> None:
        self._pipeline.close()


def _calibration(run: RunDir, pipeline: zephon.Pipeline, membership: Membership) -> Counts:
    """Tokens and bytes of each dataset's sample: from the run directory, or measured by rank 0 and stored there."""
    counts: Counts | ZephonError | None = None
    if membership.first:
        try:
            counts = read_calibration(run)
            if counts is None:
                counts = dict(pipeline.calibrate())
                write_calibration(run, counts)
        except ZephonError as error:
            counts = error
    counts = membership.broadcast(counts)
    if isinstance(counts, ZephonError):
        raise counts
    assert counts is not None
    return counts


def _on_error(data: DataSpec) -> OnError | dict[str, OnError]:
    """One policy where all datasets have the same, which is how the stream's description spells it; else by dataset."""
    by_dataset = {name: dataset.on_error or data.on_error for name, dataset in data.datasets.items()}
    policies = set(by_dataset.values())
    return policies.pop() if len(policies) == 1 else by_dataset


def _field(datasets: Mapping[str, DatasetSpec] | Mapping[str, EvalDatasetSpec]) -> str:
    fields = sorted({dataset.field for dataset in datasets.values()})
    if len(fields) > 1:
        raise ConfigError(
            f"the datasets have their text in different fields: {', '.join(fields)}",
            follows="documents of some datasets would have no text",
            remedy="use datasets with one field name",
        )
    return fields[0]
