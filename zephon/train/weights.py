"""The weights of a checkpoint without its optimizer, loader and ranks: for export and evaluation, in one process on the CPU."""

from __future__ import annotations

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from zephon.errors import StateError
from zephon.run.checkpoints import complete_steps
from zephon.run.directory import RunDir
from zephon.train import checkpoint
from zephon.train.distributed import ProcessInfo, join

_MODEL = "model."


def read_weights(run: RunDir, *, step: int | None = None) -> tuple[int, dict[str, Tensor]]:
    """(step, full tensors by the decoder's names) of a complete checkpoint, by default the newest, of any size and sharding.

    Raises:
        StateError: there is no complete checkpoint of that step, or it is not one of our decoder.
    """
    steps = complete_steps(run)
    if not steps or (step is not None and step not in steps):
        raise StateError(
            f"{run.url} has no complete checkpoint of step {step}" if steps else f"{run.url} has no complete checkpoint",
            remedy=f"use one of {', '.join(map(str, steps))}" if steps else "train until the first checkpoint",
        )
    chosen = steps[-1] if step is None else step
    reader = checkpoint.reader(run, chosen)
    saved = reader.read_metadata().state_dict_metadata
    tensors: dict[str, Tensor] = {
        name: torch.empty(entry.size)
        for name, entry in saved.items()
        if name.startswith(_MODEL) and isinstance(entry, TensorStorageMetadata)
    }
    if f"{_MODEL}embed.weight" not in tensors:
        raise StateError(
            f"the checkpoint of step {chosen} in {run.url} is of another trainer's model",
            follows="its weights would be read as other ones",
            remedy="use the tools of that trainer (for TorchTitan its own conversion of checkpoints)",
        )
    membership = join(ProcessInfo(), device=torch.device("cpu"))
    try:
        dcp.load(tensors, storage_reader=reader, process_group=membership.saving)
    finally:
        membership.leave()
    return chosen, {name.removeprefix(_MODEL): tensor for name, tensor in tensors.items()}
