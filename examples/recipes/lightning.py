"""PyTorch Lightning's Trainer: the loader's state travels with each batch into Lightning's checkpoint.

Lightning fetches one batch ahead, so the loader's present state is not that of the batch in training: the dataset gives each
batch together with the state after it. Each of Lightning's batches is a microbatch; here two are a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, IterableDataset

from examples.recipes.common import model, pipeline, show
from zephon import Pipeline

PER_STEP = 2  # microbatches of this rank in one step


class WithState(IterableDataset):
    """Each batch of a pipeline, and the state after it."""

    def __init__(self, loader: Pipeline) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        for batch in self.loader:
            yield batch.to_training(return_labels=True), self.loader.state_dict()


class Module(pl.LightningModule):
    """A model that keeps the state of the batch that it trained last."""

    def __init__(self, loader: Pipeline) -> None:
        super().__init__()
        self.net, self.loader, self.state, self.losses = model(), loader, loader.state_dict(), []

    def training_step(self, batch: tuple[dict[str, Any], dict[str, Any]], index: int) -> Any:
        fields, self.state = batch
        loss = self.net(**fields)["loss"]
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["zephon"] = self.state

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.loader.load_state_dict(checkpoint["zephon"])


def train(steps: int, path: Path) -> list[float]:
    """Trains until ``steps`` steps are done, from where the file at ``path`` says; returns the losses of these steps."""
    loader = pipeline()
    module = Module(loader)
    trainer = pl.Trainer(
        max_steps=steps,
        accumulate_grad_batches=PER_STEP,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=path.parent,
    )
    data = DataLoader(WithState(loader), batch_size=None, num_workers=0)
    trainer.fit(module, data, ckpt_path=str(path) if path.exists() else None, weights_only=False)
    trainer.save_checkpoint(path)
    loader.close()
    return [sum(module.losses[i : i + PER_STEP]) / PER_STEP for i in range(0, len(module.losses), PER_STEP)]


if __name__ == "__main__":
    show(train)
