"""Causal attention within documents: two ways to compute one thing.

A packed row holds several documents; ``positions`` restart at 0 with each, and that alone says where one begins::

    positions  0 1 2 3 0 1 0 1 2
    segments   1 1 1 1 2 2 3 3 3      a token sees earlier tokens of its own segment only

``dense`` gives scaled dot-product attention a boolean mask [B, 1, T, T]: the reference, everywhere. ``flex`` gives
FlexAttention a block mask, which skips blocks without a visible pair: CUDA only. Both agree within rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

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
        kind: ``"dense"``, ``"flex"``, or ``"auto"`` (flex on CUDA, dense elsewhere).

    Returns:
        A function of q [B, H, T, D] and k, v [B, KV, T, D] (H a multiple of KV) giving [B, H, T, D].
    """
    if positions is None:
        return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    if kind == "flex" or (kind == "auto" and positions.is_cuda):
        return _flex(positions)
    mask = dense_mask(positions)
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def _flex(positions: Tensor) -> Attend:
    from torch.nn.attention.flex_attention import create_block_mask

    segment = segments(positions)

    def visible(b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (segment[b, q] == segment[b, k])

    rows, length = positions.shape
    mask = create_block_mask(visible, rows, None, length, length, device=str(positions.device))
    return lambda q, k, v: _compiled_flex()(q, k, v, block_mask=mask, enable_gqa=True)


@cache
def _compiled_flex() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)
