"""Datasets that a field of an experiment names: what is wrong with one is said of that field, once."""

from __future__ import annotations

from zephon.errors import ConfigError, ZephonError
from zephon.io.dataset import Dataset


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
            follows="there would be nothing to train on",
            remedy="correct the path or the format of this dataset",
        ) from error
