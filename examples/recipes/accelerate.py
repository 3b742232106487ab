"""Hugging Face Accelerate: it wraps model and optimizer; the pipeline deals the data, each rank its own lanes.

The pipeline is not given to ``prepare``: Accelerate would deal the batches again, or send rank 0's to the others.
"""

from __future__ import annotations

from pathlib import Path

import torch
from accelerate import Accelerator

from examples.recipes.common import model, pipeline, show


def train(steps: int, folder: Path) -> list[float]:
    """Trains until ``steps`` steps are done, from where ``folder`` says; returns the losses of these steps."""
    accelerator = Accelerator(cpu=True)
    loader = pipeline()
    net = model()
    net, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=1e-2))
    accelerator.register_for_checkpointing(loader)  # saved and loaded with everything else
    if folder.exists():
        accelerator.load_state(str(folder))
    losses = []
    for step in loader.steps():
        total = 0.0
        for batch in step:
            loss = net(**batch.to_training(return_labels=True))["loss"] / batch.microbatch[1]
            accelerator.backward(loss)
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
        if loader.checkpoint()["step"] == steps:
            break
    accelerator.save_state(str(folder))
    loader.close()
    return losses


if __name__ == "__main__":
    show(train)
