"""What the recipes share: a pipeline and a tiny model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zephon import Dataset, Pipeline, StaticMixtureWorkSource

VOCABULARY, LENGTH, ROWS = 258, 65, 4


def pipeline(*, rank: int = 0, ranks: int = 1) -> Pipeline:
    """Python's own documentation in bytes: 8 sequences a step over all ranks, from 4 lanes."""
    source = StaticMixtureWorkSource([Dataset.from_path("docs", "stdlib://docs")], seed=1, exhausted_policy="repeat")
    return (
        Pipeline(source)
        .options(max_workers=1, dp_degree=ranks, dp_group_id=rank, canonical_replicas=4, global_batch_size=8)
        .tokenize(tokenizer_id="bytes", field="text")
        .pack_flat(max_length=LENGTH, algorithm="wrap")
        .batch(microbatch_size=ROWS)
    )


class TinyModel(nn.Module):
    """Predicts the next byte from this one; stands for your model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.output = nn.Linear(16, VOCABULARY)

    def forward(self, input_ids: Tensor, labels: Tensor, **_: Any) -> dict[str, Tensor]:
        logits = self.output(self.embed(input_ids))
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def model() -> TinyModel:
    torch.manual_seed(0)
    return TinyModel()
