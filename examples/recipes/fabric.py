"""Lightning Fabric: it launches ranks and wraps the model; the loader's state goes into Fabric's checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from examples.recipes.common import model, pipeline, show


def train(steps: int, path: Path) -> list[float]:
    """Trains until ``steps`` steps are done, from where ``path`` says; returns the losses of these steps."""
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    loader, net = pipeline(), model()
    net, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), lr=1e-2))
    state: dict[str, Any] = {"model": net, "optimizer": optimizer, "loader": loader.checkpoint()}
    if path.exists():
        fabric.load(path, state)
        loader.restore(state["loader"])
    losses = []
    for step in loader.steps():
        total = 0.0
        for batch in step:
            loss = net(**batch.to_training(return_labels=True))["loss"] / batch.microbatch[1]
            fabric.backward(loss)
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
        state["loader"] = loader.checkpoint()
        if state["loader"]["step"] == steps:
            break
    fabric.save(path, state)
    loader.close()
    return losses


if __name__ == "__main__":
    show(train)
