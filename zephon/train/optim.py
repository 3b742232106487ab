"""AdamW with two parameter groups, and its state by parameter name.

Matrices decay, vectors (norms) do not. The state of every parameter exists from the beginning, with every field of
AdamW, so that a checkpoint loads into it by name, and a missing or surplus field is an error.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from zephon.spec.experiment import OptimizerSpec

FIELDS = ("step", "exp_avg", "exp_avg_sq")


def adamw(model: nn.Module, spec: OptimizerSpec) -> torch.optim.AdamW:
    """The optimizer of ``model``, with zeroed state already in place. Fused kernels on CUDA."""
    groups = []
    for parameters in _by_mesh(model):
        groups.append({"params": [p for p in parameters if p.ndim >= 2], "weight_decay": spec.weight_decay})
        groups.append({"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0})
    device = next(model.parameters()).device.type
    optimizer = torch.optim.AdamW(
        [g for g in groups if g["params"]], lr=spec.lr, betas=spec.betas, eps=spec.eps, fused=device == "cuda"
    )
    for parameter in model.parameters():
        where = parameter.device if device == "cuda" else torch.device("cpu")
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=where),
            "exp_avg": torch.zeros_like(parameter, requires_grad=False),
            "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
        }
    return optimizer


def tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """All tensors of a training state by flat name: ``model.NAME`` and ``optim.NAME.FIELD``; live, not copied."""
    named: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        named[f"model.{name}"] = parameter.detach()
        state = cast("dict[str, Tensor]", optimizer.state[parameter])
        for field in FIELDS:
            named[f"optim.{name}.{field}"] = state[field].detach()
    return named


@torch.no_grad()
def reset(optimizer: torch.optim.Optimizer) -> None:
    """Zeroes every field of the state."""
    for state in optimizer.state.values():
        for value in state.values():
            value.zero_()


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def gradient_norm(model: nn.Module) -> Tensor:
    """The 2-norm of the whole gradient, the same number however it is sharded: float32 scalar."""
    norms = []
    for parameters in _by_mesh(model):
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))


def clip(model: nn.Module, norm: Tensor, limit: float) -> None:
    """Scales the gradients so that their norm is at most ``limit``; ``norm`` is what ``gradient_norm`` gave."""
    for parameters in _by_mesh(model):
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)


def _by_mesh(model: nn.Module) -> list[list[nn.Parameter]]:
    """Parameters that PyTorch's list-wise kernels accept together: one list, or one per mesh with tensor parallelism."""
    by_mesh: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        by_mesh.setdefault(parameter.device_mesh if isinstance(parameter, DTensor) else None, []).append(parameter)
    return list(by_mesh.values())
