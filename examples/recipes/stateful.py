"""torchdata's StatefulDataLoader: the loader's state inside the DataLoader's own.

The pipeline has its own workers, so ``num_workers=0``; ``batch_size=None`` because it delivers whole batches.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from examples.recipes.common import model, pipeline, show


def train(batches: int, path: Path) -> list[float]:
    """Trains until ``batches`` microbatches are done; returns the losses of these."""
    net, losses, done = model(), [], 0
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    data = pipeline()
    loader = StatefulDataLoader(data.to_torch_dataset(to_training={"return_labels": True}), batch_size=None, num_workers=0)
    if path.exists():
        saved = torch.load(path, weights_only=False)
        net.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
        done = saved["done"]
    for batch in loader:
        loss = net(**batch)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        done += 1
        if done == batches:
            break
    torch.save({"model": net.state_dict(), "loader": loader.state_dict(), "done": done}, path)
    data.close()
    return losses


if __name__ == "__main__":
    show(train)
