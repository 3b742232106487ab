"""Zephon: the same global batch at every step, on any number of GPUs.

Importing has no side effects and does not import torch.
"""

from zephon.batch import SampleBatch
from zephon.io import Dataset, InMemoryShard
from zephon.ops.records import SampleMeta, SampleRecord
from zephon.pipeline import Pipeline
from zephon.state import merge_states
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
