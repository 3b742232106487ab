"""PyTorch and nothing else: a loop by optimizer step, with everything that resuming needs in one literal."""

from __future__ import annotations

from pathlib import Path

import torch

from examples.recipes.common import model, pipeline, show


def train(steps: int, path: Path) -> list[float]:
    """Trains until ``steps`` steps are done, from where the file at ``path`` says; returns the losses of these steps."""
    net, loader, losses = model(), pipeline(), []
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    if path.exists():
        saved = torch.load(path, weights_only=True)
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.restore(saved["loader"])
    for step in loader.steps():
        batches = [batch.to_training(return_labels=True) for batch in step]
        loss = torch.stack([net(**batch)["loss"] for batch in batches]).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        state = loader.checkpoint()
        if state["step"] == steps:
            break
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "loader": state}, path)
    loader.close()
    return losses


if __name__ == "__main__":
    show(train)
