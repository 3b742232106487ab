"""Zephon: the same global batch at every step, on any number of GPUs.

    import itertools

    from zephon import Dataset, Pipeline, StaticMixtureWorkSource

    docs, code = Dataset.from_path("docs", "stdlib://docs"), Dataset.from_path("code", "stdlib://code")
    source = StaticMixtureWorkSource([docs, code], {"docs": 1, "code": 1}, exhausted_policy="repeat")
    pipeline = (
        Pipeline(source)
        .options(lanes=8, global_batch_size=64)  # 64 sequences in each step, on 1, 2, 4 or 8 ranks
        .tokenize(tokenizer_id="gpt2", field="text")
        .pack_flat(context_length=2048)
        .shuffle(buffer_size=1024, seed=42)
        .batch(microbatch_size=8)
    )
    for step in itertools.islice(pipeline.steps(), 3):  # three optimizer steps; without islice it goes on for ever
        for batch in step:
            tensors = batch.to_training(return_labels=True)  # input_ids and labels, for your model
            print(batch.step, "rows", batch.slots, tensors["input_ids"].shape)

Importing has no side effects and does not import torch. What is named here is loaded when it is first used, so that a
command of the launcher does not wait for the loader.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zephon.batch import SampleBatch
    from zephon.cursor import merge_states
    from zephon.errors import ZephonError
    from zephon.io import Dataset, InMemoryShard
    from zephon.ops.records import SampleMeta, SampleRecord
    from zephon.ops.tokenizers import load_tokenizer
    from zephon.pipeline.pipeline import Pipeline
    from zephon.pipeline.trace import trace
    from zephon.types import Address
    from zephon.work import (
        MixtureSpec,
        Phase,
        PhasedMixtureWorkSource,
        StaticMixtureWorkSource,
        TokenEstimation,
        WorkSource,
    )

__all__ = [
    "Address",
    "Dataset",
    "InMemoryShard",
    "MixtureSpec",
    "Phase",
    "PhasedMixtureWorkSource",
    "Pipeline",
    "SampleBatch",
    "SampleMeta",
    "SampleRecord",
    "StaticMixtureWorkSource",
    "TokenEstimation",
    "WorkSource",
    "ZephonError",
    "__version__",
    "load_tokenizer",
    "merge_states",
    "trace",
]

__version__ = "0.1.0"

_HOMES = {
    "zephon.batch": ("SampleBatch",),
    "zephon.io": ("Dataset", "InMemoryShard"),
    "zephon.ops.records": ("SampleMeta", "SampleRecord"),
    "zephon.pipeline.pipeline": ("Pipeline",),
    "zephon.pipeline.trace": ("trace",),
    "zephon.cursor": ("merge_states",),
    "zephon.errors": ("ZephonError",),
    "zephon.ops.tokenizers": ("load_tokenizer",),
    "zephon.types": ("Address",),
    "zephon.work": (
        "MixtureSpec",
        "Phase",
        "PhasedMixtureWorkSource",
        "StaticMixtureWorkSource",
        "TokenEstimation",
        "WorkSource",
    ),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'zephon' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
