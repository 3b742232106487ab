"""A Llama-style decoder: RMSNorm, rotary positions restarting per document, grouped-query attention, SwiGLU.

    tokens [B, T] -> embed -> layers x ( + attention(norm) ; + feed-forward(norm) ) -> norm -> logits [B, T, V]

The module holds parameters only (no buffers), so it can be built on the meta device, sharded, and filled in later.
``initialise`` fills each parameter from the seed and the parameter's own name: the weights are the same for every
number of ranks and every kind of sharding. To train another model, replace ``Decoder``; the rest asks for
``forward(input_ids, positions, labels, z_loss) -> (minimised, cross entropy)``, both summed over the trained tokens, and
for ``blocks()``, the units to shard and recompute.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.checkpoint import checkpoint

from zephon.seeds import derive, raw
from zephon.spec.experiment import ModelSpec
from zephon.spec.model_shape import check_shape
from zephon.train.attention import Attend, attention
from zephon.train.loss import head_loss


class Decoder(nn.Module):
    """The whole model.

    Args:
        spec: sizes; ``kv_heads`` defaults to ``heads``, ``hidden_dim`` to 8/3 dim rounded up to a multiple of 32.
        vocab_size: rows of the embedding.
        recompute: recompute each layer in backward instead of keeping its activations.
        attend: ``"dense"``, ``"flex"``, ``"varlen"`` or ``"auto"``, see attention.py.
    """

    def __init__(self, spec: ModelSpec, vocab_size: int, *, recompute: bool = False, attend: str = "auto") -> None:
        super().__init__()
        check_shape(spec)
        self.spec, self.recompute, self.attend = spec, recompute, attend
        self.embed = nn.Embedding(vocab_size, spec.dim)
        self.layers = nn.ModuleList(Layer(spec) for _ in range(spec.layers))
        self.norm = nn.RMSNorm(spec.dim, eps=spec.norm_eps)
        self.output = None if spec.tie_embeddings else nn.Linear(spec.dim, vocab_size, bias=False)

    def forward(
        self, input_ids: Tensor, positions: Tensor | None = None, labels: Tensor | None = None, z_loss: float = 0.0
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Logits [B, T, V] of token ids [B, T]; with labels [B, T], what ``loss.head_loss`` gives instead.

        Args:
            positions: restart at 0 with each document; None for one document a row.
            labels: -100 where nothing is trained.
        """
        rotary = rotation(input_ids, positions, head_dim=self.spec.dim // self.spec.heads, theta=self.spec.rope_theta)
        attend = attention(positions, kind=self.attend)
        x = self.embed(input_ids)
        for layer in self.layers:
            if self.recompute and torch.is_grad_enabled():
                x = checkpoint(layer, x, rotary, attend, use_reentrant=False)
            else:
                x = layer(x, rotary, attend)
        x = self.norm(x)
        head = self.embed.weight if self.output is None else self.output.weight
        return F.linear(x, head) if labels is None else head_loss(x, head, labels, z_loss=z_loss)

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)


class Layer(nn.Module):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(spec.dim, eps=spec.norm_eps)
        self.attention = Attention(spec)
        self.feed_forward_norm = nn.RMSNorm(spec.dim, eps=spec.norm_eps)
        self.feed_forward = FeedForward(spec.dim, hidden_dim(spec))

    def forward(self, x: Tensor, rotary: Tensor, attend: Attend) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotary, attend)
        y: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return y


class Attention(nn.Module):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.head_dim = spec.dim // spec.heads
        kv_dim = (spec.kv_heads or spec.heads) * self.head_dim
        self.query = nn.Linear(spec.dim, spec.dim, bias=False)
        self.key = nn.Linear(spec.dim, kv_dim, bias=False)
        self.value = nn.Linear(spec.dim, kv_dim, bias=False)
        self.out = nn.Linear(spec.dim, spec.dim, bias=False)

    def forward(self, x: Tensor, rotary: Tensor, attend: Attend) -> Tensor:
        q, k, v = (
            f(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for f in (self.query, self.key, self.value)
        )  # each [B, heads, T, D]
        heads = attend(rotate(q, rotary), rotate(k, rotary), v)
        y: Tensor = self.out(heads.transpose(1, 2).flatten(2))
        return y


class FeedForward(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return y


def rotation(input_ids: Tensor, positions: Tensor | None, *, head_dim: int, theta: float) -> Tensor:
    """Cosines and sines of each token's rotation angles: float32 [2, B or 1, 1, T, head_dim / 2]."""
    if positions is None:
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
    exponent = torch.arange(0, head_dim, 2, device=input_ids.device, dtype=torch.float32) / head_dim
    angles = positions[:, None, :, None].float() * theta**-exponent
    return torch.stack((angles.cos(), angles.sin()))


def rotate(x: Tensor, rotary: Tensor) -> Tensor:
    """Rotates the pairs (x[i], x[i + D/2]) of [B, heads, T, D]."""
    cos, sin = rotary
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).type_as(x)


def hidden_dim(spec: ModelSpec) -> int:
    return spec.hidden_dim or 32 * math.ceil(spec.dim * 8 / 3 / 32)


def initial(name: str, shape: torch.Size, *, seed: int, layers: int) -> Tensor:
    """The starting value of one parameter: float32, a pure function of seed, name, shape and depth.

    Bell-shaped by adding four 16-bit integers and scaling once, so that every machine computes the same bits.
    """
    if len(shape) == 1:
        return torch.ones(shape)
    scale = 0.02 / math.sqrt(2 * layers) if name.endswith(("attention.out.weight", "feed_forward.down.weight")) else 0.02
    sums = raw(derive(seed, "init", name), shape.numel()).astype("<u8").view("<u2").reshape(-1, 4).sum(1, dtype=np.int32)
    unit = math.sqrt((65536**2 - 1) / 3)  # standard deviation of the sum
    return torch.from_numpy((sums - 2 * 65535).astype(np.float32) * np.float32(scale / unit)).view(shape)


@torch.no_grad()
def initialise(model: nn.Module, *, seed: int, layers: int) -> None:
    """Fills every parameter, sharded or whole, one full tensor at a time."""
    for name, parameter in model.named_parameters():
        assign(parameter, initial(name, parameter.shape, seed=seed, layers=layers))


@torch.no_grad()
def assign(target: Tensor, full: Tensor) -> None:
    """Copies a full tensor into a whole tensor or into this rank's part of a sharded one; no communication."""
    if isinstance(target, DTensor):
        local = full.to(target.device)
        target.copy_(distribute_tensor(local, target.device_mesh, target.placements, src_data_rank=None))
    else:
        target.copy_(full)


def parameter_count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
