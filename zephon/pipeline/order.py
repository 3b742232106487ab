"""Which op may follow which: checked before any data is read."""

from __future__ import annotations

from collections.abc import Sequence

from zephon.errors import ConfigError
from zephon.ops.balance import EnsureMixture
from zephon.ops.op import AccumulatorOp, Op, StageOp
from zephon.ops.pack import Pack
from zephon.ops.tokenize import Tokenize


def check_order(ops: Sequence[Op], names: Sequence[str], *, mixed: bool) -> None:
    """Raises ConfigError for ops in an order, or with options, that cannot work together.

    Args:
        ops: before batch, in order.
        names: of the datasets.
        mixed: whether the source has a mixture.
    """
    packed: Op | None = None
    held: Op | None = None
    for op in ops:
        if packed is not None and (isinstance(op, Pack) or (isinstance(op, StageOp) and not op.packed)):
            raise ConfigError(
                f"{op.name} comes after {packed.name}",
                follows="it would see packed rows instead of documents",
                remedy=f"put {op.name} before {packed.name}",
            )
        if held is not None and isinstance(op, StageOp) and op.on_error == "quarantine":
            raise ConfigError(
                f"{op.name}(on_error='quarantine') comes after {held.name}",
                follows="a document could not be taken out by its address any more",
                remedy=f"put {op.name} before {held.name}",
            )
        if isinstance(op, Pack):
            packed = op
            op.check_source(names)
            if any(isinstance(other, Tokenize) and other.padding for other in ops):
                raise ConfigError(
                    f"tokenize(padding=True) before {op.name}",
                    follows="padding would be packed as if it were text",
                    remedy="leave padding out: packing needs none",
                )
        if isinstance(op, EnsureMixture):
            op.check_source(names, mixed=mixed)
        if isinstance(op, AccumulatorOp):
            held = op
