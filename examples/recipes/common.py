"""What the recipes share: a pipeline and a tiny model."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zephon import Dataset, Pipeline, StaticMixtureWorkSource

VOCABULARY, LENGTH, ROWS = 258, 65, 4


def pipeline() -> Pipeline:
    """Python's own documentation in bytes: 8 sequences a step over all ranks, from 4 lanes.

    Which rank of how many this is, it sees by itself: in the process group, or in what torchrun sets.
    """
    source = StaticMixtureWorkSource([Dataset.from_path("docs", "stdlib://docs")], seed=1, exhausted_policy="repeat")
    return (
        Pipeline(source)
        .options(max_workers=1, canonical_replicas=4, global_batch_size=8)
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


def show(train: Callable[..., list[float]], *, rank: int = 0, folder: Path | None = None, **again: Any) -> None:
    """Trains six steps as a whole, then in two parts, and prints both.

    Args:
        train: a recipe's function of a number of steps and a place for its state.
        folder: where all ranks find the state; a directory of its own for one process.
        again: what the second part is given beside.
    """
    with tempfile.TemporaryDirectory() as own:
        place = folder or Path(own)
        whole = train(6, place / "whole")
        parts = train(3, place / "parts") + train(6, place / "parts", **again)
    if rank == 0:
        for step, (loss, other) in enumerate(zip(whole, parts, strict=True)):
            print(f"step {step}  loss {loss:.4f}  stopped after three and resumed: {other:.4f}")
        same = all(abs(a - b) < 1e-5 for a, b in zip(whole, parts, strict=True))
        print("the same losses" if same else "other losses")


def show_on_all(train: Callable[[int, Path], list[float]]) -> None:
    """The same on all ranks that torchrun started; the folder is rank 0's, and on one machine all see it."""
    dist.init_process_group("gloo")  # "nccl" on GPUs
    folders: list[str | None] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folders)
    show(train, rank=dist.get_rank(), folder=Path(str(folders[0])))
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(str(folders[0]))
    dist.destroy_process_group()
