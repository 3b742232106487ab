"""What a worker of the built-in trainer would only find out after its start, found before an attempt exists.

    model       its shape, its devices, the packages that it names
    tokenizer   loaded; its ids fit the model
    dataset     one global batch of one lane, from each dataset alone: format, package, rights, field, documents
    held-out    no document of it is trained on
    checkpoints free bytes against what the checkpoints need

Everything is looked at from this machine, so only for runs that train here. Nothing is written, and no torch is imported.
"""

from __future__ import annotations

import importlib.util
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from zephon.engine.measure import few_documents
from zephon.errors import ConfigError, ZephonError
from zephon.io.named import refuse_overlap
from zephon.launch.backends.local.gpus import devices
from zephon.launch.estimate import checkpoints_kept, estimate
from zephon.ops.tokenizers import Tokenizer, load_tokenizer
from zephon.pipeline.experiment import datasets_of, listed_at, with_tokens
from zephon.pipeline.pipeline import Pipeline
from zephon.run.checkpoints import complete_steps
from zephon.run.directory import RunDir
from zephon.spec.experiment import DatasetSpec, EvalDatasetSpec, RunSpec
from zephon.spec.fields import OnError
from zephon.spec.model_shape import check_shape
from zephon.work import StaticMixtureWorkSource, TokenEstimation

_CHUNK_BYTES = 65536  # at most: enough for a batch, and nothing to fetch
_TRACKERS = ("wandb", "mlflow")


def check(spec: RunSpec, rundir: RunDir) -> None:
    """Raises ConfigError, or what the loader raises, where a worker could not make its first step here."""
    for _, examine in examinations(spec, rundir, here=True):
        examine()


def examinations(spec: RunSpec, rundir: RunDir, *, here: bool) -> Iterator[tuple[str, Callable[[], str]]]:
    """(subject, examination) one after the other; an examination returns what it has seen, or raises.

    Args:
        here: whether workers will run on this machine.
    """
    yield "model", lambda: check_model(spec, here=here)
    loaded: list[Tokenizer] = []

    def tokenizer() -> str:
        loaded.append(load_tokenizer(spec.tokenizer.id, backend=spec.tokenizer.backend))
        return check_ids(spec, loaded[0])

    yield "tokenizer", tokenizer
    for at, name, dataset in _datasets(spec):
        yield f"dataset {name}", lambda at=at, name=name, dataset=dataset: read_first(spec, loaded, at, name, dataset)  # type: ignore[misc]
    if spec.trainer.eval_data:
        yield "held-out data", lambda: check_held_out(spec)
    yield "checkpoints", lambda: check_space(spec, rundir, loaded[0].vocab_size if loaded else None)


def check_model(spec: RunSpec, *, here: bool) -> str:
    """Shape, devices, trackers, held-out data.

    Raises:
        ConfigError: one of them is not there or does not fit.
    """
    trainer = spec.trainer
    check_shape(spec.model, tensor_parallel=trainer.tensor_parallel)
    if here and trainer.device == "cuda" and not devices(str(spec.scheduler.options.get("gpus", "auto"))):
        raise ConfigError("trainer.device=cuda, and this machine shows no GPU", remedy="use trainer.device=auto or cpu")
    for tracker in _TRACKERS:
        if here and getattr(trainer, tracker) and importlib.util.find_spec(tracker) is None:
            raise ConfigError(
                f"trainer.{tracker} is set and the package {tracker} is not installed",
                follows="the metrics would not reach it",
                remedy=f"pip install {tracker}, or leave trainer.{tracker} out",
            )
    if trainer.eval_every is not None and not trainer.eval_data:
        raise ConfigError(
            f"trainer.eval_every={trainer.eval_every} without trainer.eval_data",
            remedy="name held-out datasets: trainer.eval_data.NAME.path=..., or leave trainer.eval_every out",
        )
    return f"{spec.model.layers} layers of width {spec.model.dim}"


def check_ids(spec: RunSpec, tokenizer: Tokenizer) -> str:
    """Raises ConfigError: the embedding would have fewer rows than the tokenizer has ids."""
    given = spec.model.vocab_size
    if given is not None and given < tokenizer.vocab_size:
        raise ConfigError(
            f"model.vocab_size={given} is smaller than the {tokenizer.vocab_size} ids of tokenizer {tokenizer.id!r}",
            follows="token ids would have no row in the embedding",
            remedy=f"leave model.vocab_size out, or give at least {tokenizer.vocab_size}",
        )
    return f"{spec.tokenizer.id}: {tokenizer.vocab_size} ids, back end {tokenizer.backend.name}"


def check_held_out(spec: RunSpec) -> str:
    """Raises ConfigError: text that is held out is trained on."""
    held_out = listed_at("trainer.eval_data", spec.trainer.eval_data or {})
    refuse_overlap(datasets_of(spec), held_out)
    return f"{len(held_out)} datasets, which share no document with those that are trained on"


def read_first(spec: RunSpec, loaded: list[Tokenizer], at: str, name: str, dataset: DatasetSpec | EvalDatasetSpec) -> str:
    """Reads a dataset until one row is packed, as one lane would.

    Raises:
        ZephonError: a document, a shard, a package or a right is missing; ``at`` names the field.
    """
    parent, one_dataset = at.rpartition(".")[0], {name: dataset}
    (listed,) = listed_at(parent, one_dataset)
    shown = f"{len(listed.shards)} shards, {listed.size:,} units of {listed.format.name}"
    if not loaded:
        return f"{shown}; not read: there is no tokenizer"
    own = dataset.on_error if isinstance(dataset, DatasetSpec) else None
    on_error: OnError = own or spec.data.on_error
    source = StaticMixtureWorkSource(
        [listed],
        seed=spec.data.seed,
        exhausted_policy="stop",
        token_estimation=TokenEstimation(primer=0.25),
        chunk_bytes=min(spec.data.chunk_bytes or _CHUNK_BYTES, _CHUNK_BYTES),
    )
    pipeline = Pipeline(source).options(runner="inline", on_error=on_error, quarantine_budget=spec.data.quarantine_budget)
    pipeline = with_tokens(pipeline, spec, loaded[0], parent, one_dataset)
    pipeline.pack_flat(spec.pipeline.context_length, algorithm="wrap").batch(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is short, which the run itself says where it matters
            first = next(iter(pipeline), None)
    except ZephonError as error:
        error.add_note(f"found before the start, in the first documents of {at}")
        raise
    finally:
        pipeline.close()
    if first is None and not sum(pipeline.metrics_snapshot()["documents"].values()):
        raise ConfigError(
            f"{at}.path: {dataset.path!r} holds no document",
            follows="its share of the mixture could never be filled",
            remedy="check that the files were written to the end, or remove the dataset",
        )
    return f"{shown}; the first batch was read"


def check_lanes(spec: RunSpec) -> str | None:
    """What is wrong where the data has fewer documents than there are lanes; None where each lane has some.

    Raises:
        ZephonError: data that cannot be read.
    """
    return few_documents(StaticMixtureWorkSource(datasets_of(spec)), spec.lanes.count)


def check_space(spec: RunSpec, rundir: RunDir, ids: int | None) -> str:
    """Raises ConfigError: the disk of the run directory is too full for the checkpoints that the run keeps."""
    size = estimate(spec, ids=ids).checkpoint_bytes
    if not rundir.local or size is None:
        return "not known here"
    directory = Path(rundir.root)
    while not directory.exists():
        directory = directory.parent
    free = shutil.disk_usage(directory).free
    there = min(len(complete_steps(rundir)), checkpoints_kept(spec))
    need = size * (checkpoints_kept(spec) + 1 - there)  # one more is written before an old one goes
    if free < need:
        raise ConfigError(
            f"{free:,} bytes are free at {directory}, and the checkpoints of {spec.name} need {need:,}",
            follows="the run would end when it first saves",
            remedy="make room, keep fewer (checkpoint.keep_last), or use another runs=",
        )
    return f"{free / 2**30:.1f} GiB free, checkpoints need {need / 2**30:.1f}"


def _datasets(spec: RunSpec) -> Iterator[tuple[str, str, DatasetSpec | EvalDatasetSpec]]:
    """(field, name, dataset): those that are trained on, then those that are held out."""
    for name, dataset in spec.data.datasets.items():
        yield f"data.datasets.{name}", name, dataset
    held_out = spec.trainer.eval_data if spec.trainer.eval_every is not None else None
    for name, held in (held_out or {}).items():
        yield f"trainer.eval_data.{name}", name, held
