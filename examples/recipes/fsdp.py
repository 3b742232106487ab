"""torchrun and FSDP2 with an own loop: sharded weights and the loader's lanes in one distributed checkpoint.

torchrun --nproc-per-node 2 -m examples.recipes.fsdp
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from examples.recipes.common import model, pipeline, show_on_all


def train(steps: int, folder: Path) -> list[float]:
    """Trains until ``steps`` steps are done, from where ``folder`` says; returns the losses of these steps over all ranks."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))  # "cuda" on GPUs
    net, loader, losses = fully_shard(model(), mesh=mesh), pipeline(), []
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    if kept := sorted(folder.glob("*")):  # only now: asking an optimizer that has made no step for its state makes one
        weights, moments = get_state_dict(net, optimizer)
        saved = {"model": weights, "optimizer": moments, "loader": loader.state_dict()}
        dcp.load(saved, checkpoint_id=kept[-1])
        set_state_dict(net, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
        loader.load_state_dict(saved["loader"])
    for step in loader.steps():
        total = torch.zeros(())
        for batch in step:
            index, count = batch.microbatch
            net.set_requires_gradient_sync(index + 1 == count)  # ranks sum once a step
            loss = net(**batch.to_training(return_labels=True))["loss"] / count
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        losses.append(total.item() / dist.get_world_size())
        if loader.checkpoint()["step"] == steps:
            break
    weights, moments = get_state_dict(net, optimizer)
    dcp.save({"model": weights, "optimizer": moments, "loader": loader.state_dict()}, checkpoint_id=folder / str(steps))
    loader.close()
    return losses


if __name__ == "__main__":
    show_on_all(train)
