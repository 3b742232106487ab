"""What data files there are, by name and size: what a plan is made from, and so what a run has promised to keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zephon.io.named import dataset_named
from zephon.spec.experiment import DatasetSpec, EvalDatasetSpec


def listings(
    datasets: Mapping[str, DatasetSpec] | Mapping[str, EvalDatasetSpec], *, at: str = "data.datasets"
) -> dict[str, dict[str, Any]]:
    """``{dataset: {"files", "size", "sha256"}}``; the hash covers format, names and sizes.

    Raises:
        ConfigError: a dataset that is not there or cannot be used, with the field below ``at`` that names it.
    """
    found = {}
    each: list[tuple[str, DatasetSpec | EvalDatasetSpec]] = sorted(datasets.items())
    for name, one in each:
        dataset = dataset_named(f"{at}.{name}", name, one.path, one.format)
        found[name] = {"files": len(dataset.shards), "size": dataset.size, "sha256": dataset.identity}
    return found
