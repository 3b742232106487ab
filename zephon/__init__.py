"""Zephon: the same global batch at every step, on any number of GPUs.

Importing has no side effects and does not import torch. What is named here is loaded when it is first used, so that a
command of the launcher does not wait for the loader.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zephon.batch import SampleBatch
    from zephon.cursor import merge_states
    from zephon.io import Dataset, InMemoryShard
    from zephon.ops.records import SampleMeta, SampleRecord
    from zephon.pipeline.pipeline import Pipeline
    from zephon.work import MixtureSpec, StaticMixtureWorkSource, TokenEstimation, WorkSource

__all__ = [
    "Dataset",
    "InMemoryShard",
    "MixtureSpec",
    "Pipeline",
    "SampleBatch",
    "SampleMeta",
    "SampleRecord",
    "StaticMixtureWorkSource",
    "TokenEstimation",
    "WorkSource",
    "__version__",
    "merge_states",
]

__version__ = "0.1.0"

_HOMES = {
    "zephon.batch": ("SampleBatch",),
    "zephon.io": ("Dataset", "InMemoryShard"),
    "zephon.ops.records": ("SampleMeta", "SampleRecord"),
    "zephon.pipeline.pipeline": ("Pipeline",),
    "zephon.cursor": ("merge_states",),
    "zephon.work": ("MixtureSpec", "StaticMixtureWorkSource", "TokenEstimation", "WorkSource"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'zephon' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_HOME[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
