"""PyTorch and nothing else, saving on the way: a crash costs the steps since the last save, and no state is ever half written.

The state leaves with the batch, so saving needs no pause of the loader: what it has read ahead is not in the state.
"""

from __future__ import annotations

from pathlib import Path

import torch

from examples.recipes.common import model, pipeline, show

EVERY = 2


def train(steps: int, path: Path) -> list[float]:
    """Trains until ``steps`` steps are done and saves every second and the last; returns the losses of these steps."""
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
        done = state["step"]
        if done % EVERY == 0 or done == steps:
            scratch = path.with_suffix(".tmp")
            torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "loader": state}, scratch)
            scratch.replace(path)  # a reader sees the old state or the new one
        if done == steps:
            break
    loader.close()
    return losses


if __name__ == "__main__":
    show(train)
