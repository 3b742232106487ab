"""The shape of the built-in decoder: which widths and heads fit together."""

from __future__ import annotations

from zephon.errors import ConfigError
from zephon.spec.experiment import ModelSpec


def check_shape(spec: ModelSpec, *, tensor_parallel: int = 1) -> None:
    """Raises ConfigError where heads do not divide the width evenly, or cannot be divided over tensor-parallel ranks."""
    kv_heads = spec.kv_heads or spec.heads
    if spec.dim % spec.heads or spec.heads % kv_heads or (spec.dim // spec.heads) % 2:
        raise ConfigError(
            f"model.dim={spec.dim}, model.heads={spec.heads}, model.kv_heads={kv_heads} do not fit together",
            follows="attention heads would have no whole, even width or could not share keys",
            remedy="make dim an even multiple of heads, and heads a multiple of kv_heads",
        )
    if kv_heads % tensor_parallel:
        raise ConfigError(
            f"trainer.tensor_parallel={tensor_parallel} does not divide the model's {kv_heads} key-value heads",
            follows="a rank would own a part of a head",
            remedy="use a divisor of the number of key-value heads",
        )
