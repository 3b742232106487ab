"""The datasets of an experiment. An error about one of them names its field."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable, Hashable, Mapping, Sequence

from zephon.errors import ConfigError, ZephonError
from zephon.io.content import content_of
from zephon.io.dataset import Dataset
from zephon.io.hub import at_commit, commit_of, is_hub
from zephon.io.joined_fields import is_template
from zephon.spec.experiment import DatasetSpec, EvalDatasetSpec, RunSpec
from zephon.types import Json


def dataset_named(at: str, name: str, spec: DatasetSpec | EvalDatasetSpec) -> Dataset:
    """The files of the dataset whose settings are at the field ``at``, those that ``shards`` selects.

    Raises:
        NotFound: nothing is there.
        ConfigError: what is there cannot be used.
    """
    path = spec.path
    if spec.revision is not None:
        if not is_hub(path):
            raise ConfigError(
                f"{at}.revision={spec.revision} of {path!r}, which has no revisions",
                remedy="leave it out; it belongs to hf://datasets/ORG/NAME/...",
            )
        path = at_commit(path, spec.revision)
    listed = _listed(at, name, path, spec.format)
    return _selected(at, listed, lambda: listed.select(shards=spec.shards)) if spec.shards is not None else listed


def dataset_selected(at: str, name: str, spec: DatasetSpec | EvalDatasetSpec, target: str) -> Dataset:
    """The same with what its settings say of its documents: which are used, and what becomes their field ``target``."""
    listed = dataset_named(at, name, spec)
    if spec.where is not None or spec.fraction is not None:
        listed = _selected(at, listed, lambda files=listed: files.select(where=spec.where, fraction=spec.fraction))  # type: ignore[misc]
    if spec.field != target:
        listed = _selected(at, listed, lambda files=listed: files.renamed({spec.field: target}))  # type: ignore[misc]
    return listed


def field_of(spec: DatasetSpec | EvalDatasetSpec) -> str:
    """The field under which the text is read: a template of several becomes ``text``."""
    return "text" if is_template(spec.field) else spec.field


def refuse_overlap(trained: Sequence[Dataset], held_out: Sequence[Dataset]) -> None:
    """Raises ConfigError where a file is trained on and held out, unless its documents are surely divided between the two."""
    of_file: dict[Hashable, list[Dataset]] = {}
    for dataset in trained:
        for file in _files(dataset):
            of_file.setdefault(file, []).append(dataset)
    for held in held_out:
        for shard, file in enumerate(_files(held)):
            for dataset in of_file.get(file, ()):
                if not dataset.selection.disjoint(held.selection):
                    raise ConfigError(
                        f"trainer.eval_data.{held.name} and data.datasets.{dataset.name} share the file {held.path(shard)!r}",
                        follows="text that is held out would be trained on, and the evaluation would look better than it is",
                        remedy="divide it: fraction=[0, 0.99] for training, fraction=[0.99, 1] for evaluation; "
                        "or use other files, or filters on one field with different values (split == 'train')",
                    )


def _files(dataset: Dataset) -> Sequence[Hashable]:
    """What stands for each file; for built-in data its place, name and size."""
    if dataset.files:
        return dataset.files
    return list(zip(itertools.repeat(dataset.root), dataset.shards, dataset.sizes.tolist(), strict=False))


def _selected(at: str, dataset: Dataset, select: Callable[[], Dataset]) -> Dataset:
    try:
        return select()
    except ConfigError as error:
        what = error.what.removeprefix(f"dataset {dataset.name!r}: ")
        raise ConfigError(f"{at}: {what}", follows=error.follows, remedy=error.remedy) from error


def _listed(field: str, name: str, path: str, fmt: str | None) -> Dataset:
    try:
        return Dataset.from_path(name, path, fmt=fmt)
    except ConfigError as error:
        what = error.what.removeprefix(f"dataset {name!r}: ")
        raise type(error)(f"{field}.path: {what}", follows=error.follows, remedy=error.remedy) from error
    except (FileNotFoundError, ValueError) as error:
        if isinstance(error, ZephonError):
            raise
        raise ConfigError(
            f"{field}.path={path!r} cannot be used: {error}",
            remedy="correct the path or the format of this dataset",
        ) from error


def listings(
    datasets: Mapping[str, DatasetSpec] | Mapping[str, EvalDatasetSpec], *, at: str = "data.datasets", content: bool = False
) -> dict[str, Json]:
    """``{dataset: {"files", "size", "sha256"}}``: the data files of a run, which its contract pins.

    The hash covers format, names and sizes, which is what a plan is made from. With ``content`` it also covers the hash of each
    file, and ``shards`` has these by name.

    Raises:
        ConfigError: a dataset that is not there or cannot be used, with the field below ``at`` that names it.
    """
    listed = {}
    specs: list[tuple[str, DatasetSpec | EvalDatasetSpec]] = sorted(datasets.items())
    for name, spec in specs:
        dataset = dataset_named(f"{at}.{name}", name, spec)
        listed[name] = {"files": len(dataset.shards), "size": dataset.size, "sha256": dataset.identity}
        if content:
            shards = content_of(dataset)
            both = json.dumps([dataset.identity, sorted(shards.items())])
            listed[name] |= {"sha256": hashlib.sha256(both.encode()).hexdigest(), "shards": shards}
    return listed


def with_revisions(spec: RunSpec, pinned: Mapping[str, object]) -> RunSpec:
    """The experiment with the commit of each dataset of the Hub: that of the run's contract, or what the path stands for now.

    Args:
        pinned: the contract's pinned fields; empty for a run that has none yet.
    """
    datasets = dict(spec.data.datasets)
    for name, dataset in datasets.items():
        if is_hub(dataset.path) and dataset.revision is None:
            at = f"data.datasets.{name}"
            known = pinned.get(f"{at}.revision") if pinned.get(f"{at}.path") == dataset.path else None
            datasets[name] = dataclasses.replace(dataset, revision=str(known) if known else commit_of(dataset.path))
    if datasets == spec.data.datasets:
        return spec
    return dataclasses.replace(spec, data=dataclasses.replace(spec.data, datasets=datasets))
