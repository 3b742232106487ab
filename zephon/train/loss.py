"""Cross entropy without ever holding all logits.

With a vocabulary of 50,000 the logits of a microbatch are by far the largest tensor of a training step. ``head_loss``
computes them for a few tokens at a time, takes loss *and gradient* from them at once, and reuses the same memory for the
next few: forward and backward of the output layer in one pass, with the same multiplications as the plain way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor

from zephon.types import IGNORE_INDEX

CHUNK_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 27}  # logits held at a time


def token_losses(logits: Tensor, labels: Tensor, *, z_loss: float = 0.0) -> tuple[Tensor, Tensor]:
    """What is minimised, summed over the trained tokens and to be divided by the count of the whole step; and each one's loss.

    Args:
        logits: [..., V].
        labels: int64 [...], -100 where nothing is trained.
        z_loss: weight of log(Z)^2, which keeps the logits from drifting.

    Returns:
        (what is minimised, a float32 scalar; cross entropy alone, float32 [...], 0 where nothing is trained).
    """
    flat, target = logits.float().flatten(0, -2), labels.flatten()
    entropies = F.cross_entropy(flat, target, ignore_index=IGNORE_INDEX, reduction="none")
    minimised = entropies.sum()
    if z_loss:
        minimised = minimised + z_loss * flat.logsumexp(-1).square().masked_fill(target == IGNORE_INDEX, 0.0).sum()
    return minimised, entropies.detach().view_as(labels)


def head_loss(hidden: Tensor, weight: Tensor, labels: Tensor, *, z_loss: float = 0.0) -> tuple[Tensor, Tensor]:
    """``token_losses`` of the logits ``hidden @ weight.T``, within rounding, in little memory.

    Args:
        hidden: [B, T, D], what the last norm gave.
        weight: [V, D].
        labels: int64 [B, T].
    """
    if isinstance(weight, DTensor):  # tensor-parallel heads keep PyTorch's own path
        return token_losses(F.linear(hidden, weight), labels, z_loss=z_loss)
    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    minimised, entropies = _HeadLoss.apply(  # type: ignore[no-untyped-call]
        hidden.flatten(0, 1), weight, labels.flatten(), z_loss, dtype
    )
    return minimised, entropies.view_as(labels)


class DatasetLoss(NamedTuple):
    """The cross entropy of a dataset's trained tokens in one step, summed, and how many these are."""

    total: float
    tokens: int

    @property
    def mean(self) -> float:
        return self.total / self.tokens


def dataset_losses(trained: Mapping[str, int], sums: Sequence[float]) -> dict[str, DatasetLoss]:
    """By name; without datasets of which no token is trained."""
    return {name: DatasetLoss(total, count) for (name, count), total in zip(trained.items(), sums, strict=True) if count}


def sums_by_dataset(entropies: Tensor, datasets: Tensor | None, count: int) -> Tensor:
    """float64 [1 + count]: the sum of all losses, then that of each dataset.

    Args:
        entropies: [B, T], 0 where nothing is trained.
        datasets: integers [B, T], each label's dataset; None with a count of 0.
        count: how many datasets there are.
    """
    sums = entropies.new_zeros(1 + count, dtype=torch.float64)
    losses = entropies.flatten().double()
    sums[0] = losses.sum()
    if datasets is not None and count:
        sums[1:].index_add_(0, datasets.flatten(), losses)
    return sums


class _HeadLoss(torch.autograd.Function):
    """Gradients are ready when forward ends; backward only scales them."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, z_loss: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        wanted = any(ctx.needs_input_grad)
        low, head = hidden.to(dtype), weight.to(dtype)
        minimised = hidden.new_zeros((), dtype=torch.float32)
        entropies = hidden.new_zeros(len(hidden), dtype=torch.float32)
        to_hidden = torch.empty_like(low) if wanted else None
        to_weight = torch.zeros_like(weight, dtype=torch.float32) if wanted else None
        size = max(1, CHUNK_ELEMENTS.get(hidden.device.type, 1 << 22) // len(weight))
        with torch.autocast(hidden.device.type, enabled=False):
            for begin in range(0, len(hidden), size):
                part, target = low[begin : begin + size], labels[begin : begin + size]
                share, entropies[begin : begin + size], gradient = _chunk(part @ head.T, target, z_loss, wanted=wanted)
                minimised += share
                if to_hidden is not None and to_weight is not None:
                    gradient = gradient.to(dtype)
                    torch.mm(gradient, head, out=to_hidden[begin : begin + size])
                    to_weight += gradient.T @ part
        ctx.save_for_backward(to_hidden, to_weight)
        ctx.hidden_dtype, ctx.weight_dtype = hidden.dtype, weight.dtype
        ctx.mark_non_differentiable(entropies)
        return minimised, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        to_hidden, to_weight = ctx.saved_tensors
        scale = gradients[0]
        return (to_hidden * scale).to(ctx.hidden_dtype), (to_weight * scale).to(ctx.weight_dtype), None, None, None


def _chunk(logits: Tensor, target: Tensor, z_loss: float, *, wanted: bool) -> tuple[Tensor, Tensor, Tensor]:
    """(minimised, summed; each token's cross entropy; gradient of the first by the logits) of a few tokens; reuses the logits'
    memory."""
    logits = logits.float()
    trained, place = target != IGNORE_INDEX, target.clamp(min=0)[:, None]
    picked, highest = logits.gather(-1, place)[:, 0], logits.amax(-1)
    logits.sub_(highest[:, None]).exp_()
    total = logits.sum(-1)
    normaliser = highest + total.log()
    entropies = (normaliser - picked) * trained
    minimised = entropies.sum()
    if z_loss:
        minimised = minimised + z_loss * (normaliser.square() * trained).sum()
    if wanted:
        # d entropy / d logits = softmax - one_hot;   d log(Z)^2 / d logits = 2 log(Z) softmax
        share = (1.0 + 2.0 * z_loss * normaliser) * trained / total
        logits.mul_(share[:, None]).scatter_add_(-1, place, -trained.float()[:, None])
    return minimised, entropies, logits
