"""RunSpec -> Pipeline: the same words of an experiment are the same data, whichever trainer takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zephon.errors import ConfigError
from zephon.io import Dataset
from zephon.io.named import dataset_selected, field_of
from zephon.ops.tokenizers import Tokenizer
from zephon.pipeline.pipeline import Pipeline
from zephon.run.decisions import Decision
from zephon.spec.experiment import DatasetSpec, DataSpec, EvalDatasetSpec, RunSpec
from zephon.spec.fields import OnError
from zephon.types import TOKEN_FIELDS
from zephon.work import PhasedMixtureWorkSource, StaticMixtureWorkSource, TokenEstimation, WorkSource
from zephon.work.curriculum import is_decided, phases_of

Datasets = Mapping[str, DatasetSpec] | Mapping[str, EvalDatasetSpec] | Mapping[str, DatasetSpec | EvalDatasetSpec]
EVAL_CHUNK_BYTES = 16384  # at most; small, so that a small text reaches every lane


def pipeline(
    spec: RunSpec,
    tokenizer: Tokenizer,
    *,
    dp_rank: int,
    dp_size: int,
    datasets: list[Dataset] | None = None,
    decisions: Sequence[Decision] = (),
) -> Pipeline:
    """The experiment's pipeline for one data-parallel rank.

    Args:
        spec, tokenizer, dp_rank, dp_size: the experiment, its tokenizer, and the rank.
        datasets: where they have been listed already.
        decisions: those that the run follows.
    """
    data, shape = spec.data, spec.pipeline
    built = (
        _options(Pipeline(source_of(spec, datasets or datasets_of(spec), decisions)), spec, dp_rank, dp_size)
        .options(flush_every_k_chunks=shape.flush_every_k_chunks or None)
        .options(on_error=_on_error(data), quarantine_budget=data.quarantine_budget)
    )
    built = with_tokens(built, spec, tokenizer, "data.datasets", data.datasets)
    built.pack_flat(context_length=shape.context_length, algorithm=shape.packing)
    if shape.shuffle_buffer:
        built.shuffle(shape.shuffle_buffer, seed=shape.shuffle_seed)
    return built.batch(spec.trainer.microbatch_size)


def source_of(spec: RunSpec, datasets: list[Dataset], decisions: Sequence[Decision] = ()) -> WorkSource:
    """What the experiment trains on, in which order; ``datasets`` as `datasets_of` lists them."""
    data = spec.data
    estimation = TokenEstimation(primer=data.tokens_per_byte) if data.tokens_per_byte else None
    if data.phases is not None or is_decided(spec):
        return PhasedMixtureWorkSource(
            datasets,
            phases_of(spec, decisions),
            seed=data.seed,
            shuffle_shards=data.shuffle_chunks,
            shuffle_within_shard=data.shuffle_documents,
            exhausted_policy=data.exhausted,
            token_estimation=estimation,
            chunk_bytes=data.chunk_bytes,
        )
    return StaticMixtureWorkSource(
        datasets,
        {name: dataset.weight for name, dataset in data.datasets.items()},
        seed=data.seed,
        shuffle_shards=data.shuffle_chunks,
        shuffle_within_shard=data.shuffle_documents,
        exhausted_policy=data.exhausted,
        token_estimation=estimation,
        chunk_bytes=data.chunk_bytes,
    )


def datasets_of(spec: RunSpec) -> list[Dataset]:
    """Lists the experiment's datasets, in the spec's order."""
    return listed_at("data.datasets", spec.data.datasets)


def held_out_of(spec: RunSpec) -> list[Dataset]:
    """Lists the evaluation's datasets, in the spec's order."""
    if not spec.trainer.eval_data:
        raise ConfigError(
            f"trainer.eval_every={spec.trainer.eval_every} without trainer.eval_data",
            remedy="name held-out datasets: trainer.eval_data.NAME.path=..., or leave trainer.eval_every out",
        )
    return listed_at("trainer.eval_data", spec.trainer.eval_data)


def held_out_pipeline(
    spec: RunSpec, tokenizer: Tokenizer, *, dp_rank: int, dp_size: int, datasets: list[Dataset] | None = None
) -> Pipeline:
    """The evaluation's text for one rank: every document once, in stored order, each dataset in proportion to its size.

    Args:
        datasets: as ``held_out_of`` gives them, for a caller that has listed them already.
    """
    datasets = held_out_of(spec) if datasets is None else datasets
    data = spec.trainer.eval_data or {}
    share = min(dataset.size for dataset in datasets) // (4 * spec.lanes.count)
    source = StaticMixtureWorkSource(
        datasets,
        shuffle_shards=False,
        shuffle_within_shard=False,
        stop_after_passes=1,
        chunk_bytes=max(1, min(EVAL_CHUNK_BYTES, share)),
    )
    built = with_tokens(_options(Pipeline(source), spec, dp_rank, dp_size), spec, tokenizer, "trainer.eval_data", data)
    return built.pack_flat(context_length=spec.pipeline.context_length).batch(spec.trainer.microbatch_size, drop_last=False)


def with_tokens(pipeline: Pipeline, spec: RunSpec, tokenizer: Tokenizer, at: str, datasets: Datasets) -> Pipeline:
    """The pipeline with token ids: those of the tokenizer, or those that are stored.

    Raises:
        ConfigError: ids of another tokenizer are stored, or ids in some datasets and text in others.
    """
    stored = {name: dataset.tokens for name, dataset in datasets.items() if dataset.tokens is not None}
    for name, of in stored.items():
        if of != spec.tokenizer.id:
            raise ConfigError(
                f"{at}.{name}.tokens={of!r}: ids of another tokenizer than tokenizer.id={spec.tokenizer.id!r}",
                follows="the model would learn numbers that stand for other text",
                remedy=f"train with tokenizer.id={of}, or store the text and let it be tokenized",
            )
    if not stored:
        return pipeline.tokenize(tokenizer, field=text_field(datasets), special_tokens=spec.tokenizer.special_tokens)
    if len(stored) < len(datasets):
        text = next(name for name in datasets if name not in stored)
        raise ConfigError(
            f"{at}.{next(iter(stored))} holds token ids, and {at}.{text} text",
            follows="one of them could not be read",
            remedy=f"store ids in all of them and say so ({at}.{text}.tokens={spec.tokenizer.id}), or text in all of them",
        )
    return pipeline


def _options(pipeline: Pipeline, spec: RunSpec, dp_rank: int, dp_size: int) -> Pipeline:
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


def _on_error(data: DataSpec) -> OnError | dict[str, OnError]:
    """One policy where all datasets have the same, which is how the stream's description spells it; else by dataset."""
    by_dataset = {name: dataset.on_error or data.on_error for name, dataset in data.datasets.items()}
    policies = set(by_dataset.values())
    return policies.pop() if len(policies) == 1 else by_dataset


def text_field(datasets: Datasets) -> str:
    """The field under which the text of all datasets is read: their own where they have one in common."""
    fields = {field_of(dataset) for dataset in datasets.values()}
    return fields.pop() if len(fields) == 1 else "text"


def listed_at(at: str, datasets: Datasets) -> list[Dataset]:
    """The datasets whose settings are below the field ``at``. Text in another field than `text_field` is renamed at reading.

    Stored ids are looked for under their usual names, or taken from the field that is named.
    """
    field = text_field(datasets)
    return [
        dataset_selected(f"{at}.{name}", name, dataset, field if dataset.tokens is None else _field_of_ids(dataset.field))
        for name, dataset in datasets.items()
    ]


def _field_of_ids(field: str) -> str:
    return field if field in ("text", *TOKEN_FIELDS) else TOKEN_FIELDS[0]
