"""The datasets of an experiment. An error about one of them names its field."""

from __future__ import annotations

from collections.abc import Mapping

from zephon.errors import ConfigError, ZephonError
from zephon.io.dataset import Dataset
from zephon.spec.experiment import DatasetSpec, EvalDatasetSpec
from zephon.types import Json


def dataset_named(field: str, name: str, path: str, fmt: str | None) -> Dataset:
    """`Dataset.from_path` for the dataset whose settings are at ``field``.

    Raises:
        NotFound: nothing is there.
        ConfigError: what is there cannot be used.
    """
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
    datasets: Mapping[str, DatasetSpec] | Mapping[str, EvalDatasetSpec], *, at: str = "data.datasets"
) -> dict[str, Json]:
    """``{dataset: {"files", "size", "sha256"}}``: the data files of a run, which its contract pins.

    The hash covers format, names and sizes, which is what a plan is made from.

    Raises:
        ConfigError: a dataset that is not there or cannot be used, with the field below ``at`` that names it.
    """
    listed = {}
    specs: list[tuple[str, DatasetSpec | EvalDatasetSpec]] = sorted(datasets.items())
    for name, spec in specs:
        dataset = dataset_named(f"{at}.{name}", name, spec.path, spec.format)
        listed[name] = {"files": len(dataset.shards), "size": dataset.size, "sha256": dataset.identity}
    return listed
