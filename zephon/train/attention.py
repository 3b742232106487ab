"""Causal attention within documents: three ways to compute one thing.

A packed row holds several documents; ``positions`` restart at 0 with each, and that alone says where one begins::

    positions  0 1 2 3 0 1 0 1 2
    segments   1 1 1 1 2 2 3 3 3      a token sees earlier tokens of its own segment only

``dense`` passes scaled dot-product attention a boolean mask [B, 1, T, T]: the reference, everywhere. ``flex`` gives
FlexAttention a block mask, which skips blocks without a visible pair: CUDA only. ``varlen`` gives PyTorch's variable-length
kernel the documents end to end with their boundaries, so that nothing masked is computed at all: CUDA in half precision,
and only when asked for by name, until `make check-gpu` has shown it on the devices at hand. All agree within rounding.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def segments(positions: Tensor) -> Tensor:
    """Numbers the documents of each row: int64 [B, T] from positions [B, T]."""
    return (positions == 0).cumsum(-1)


def dense_mask(positions: Tensor) -> Tensor:
    """True where a query (third axis) may see a key (last axis): bool [B, 1, T, T]."""
    segment = segments(positions)
    same = segment[:, None, :, None] == segment[:, None, None, :]
    return same.tril()


def attention(positions: Tensor | None, *, kind: str = "auto") -> Attend:
    """Prepares the mask once per forward and returns ``attend(q, k, v)``.

    Args:
        positions: int64 [B, T], 0 at each document's first token; ``None`` for one document a row.
        kind: ``"dense"``, ``"flex"``, ``"varlen"``, or ``"auto"`` (flex on CUDA, dense elsewhere).

    Returns:
        A function of q [B, H, T, D] and k, v [B, KV, T, D] (H a multiple of KV) giving [B, H, T, D].
    """
    if positions is None:
        return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    if kind == "flex" or (kind == "auto" and positions.is_cuda):
        return _flex(positions)
    if kind == "varlen":
        return _varlen(positions)
    mask = dense_mask(positions)
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def has_varlen() -> bool:
    """Whether this PyTorch has the variable-length kernel at all."""
    return importlib.util.find_spec("torch.nn.attention.varlen") is not None


def boundaries(positions: Tensor) -> Tensor:
    """Where documents begin when all rows are laid end to end, and the end of the last: int32 [documents + 1]."""
    begins = positions == 0
    begins[:, 0] = True  # a row's first token sees nothing of the row before
    end = torch.tensor([positions.numel()], device=positions.device)
    return torch.cat((begins.flatten().nonzero().flatten(), end)).int()


def _varlen(positions: Tensor) -> Attend:
    rows, length = positions.shape
    edges = boundaries(positions)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # each [B T, heads, D]
        # No document is longer than its row; the longest itself is known to the device only.
        seen = _varlen_kernel()(q, k, v, edges, edges, length, length, window_size=(-1, 0), enable_gqa=True)
        assert isinstance(seen, Tensor)
        return seen.view(rows, length, *seen.shape[1:]).transpose(1, 2)

    return attend


def _varlen_kernel() -> Callable[..., object]:
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn


def _flex(positions: Tensor) -> Attend:
    segment = segments(positions)

    def visible(b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (segment[b, q] == segment[b, k])

    rows, length = positions.shape
    mask = _compiled_mask()(visible, rows, None, length, length, device=str(positions.device))
    return lambda q, k, v: _compiled_flex()(q, k, v, block_mask=mask, enable_gqa=True)


@cache
def _compiled_mask() -> Callable[..., object]:
    """Without compilation it writes out all pairs of tokens. One compilation serves all rows of one shape."""
    from torch.nn.attention.flex_attention import create_block_mask

    return torch.compile(create_block_mask, dynamic=False)


@cache
def _compiled_flex() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)
