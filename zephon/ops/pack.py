"""pack_flat: documents into rows of exactly ``max_length`` tokens."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from zephon.errors import ConfigError, nearest
from zephon.ops.op import Accumulator, AccumulatorOp, LaneContext, free
from zephon.ops.packing.wrap import Wrap

ALGORITHMS = ("wrap",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackFlat(AccumulatorOp):
    """See `Pipeline.pack_flat`."""

    name: ClassVar[str] = "pack_flat"

    max_length: int
    algorithm: str = "first_fit"
    pad_token_id: int | None = None
    emit_positions: bool = True
    parallelism: int | None = free()

    @property
    def reorders(self) -> bool:  # type: ignore[override]
        return self.algorithm != "wrap"

    @property
    def carries(self) -> bool:  # type: ignore[override]
        return self.algorithm == "wrap"

    def describe(self) -> dict[str, Any]:
        return AccumulatorOp.describe(self)

    def check(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise ConfigError(
                f"pack_flat(algorithm={self.algorithm!r}) is not known",
                follows="documents could not be packed",
                remedy=nearest(self.algorithm, ALGORITHMS),
            )
        if self.max_length < 2:
            raise ConfigError(
                f"pack_flat(max_length={self.max_length})",
                follows="a row would have no token to predict",
                remedy="use at least 2",
            )

    def open(self, context: LaneContext) -> Accumulator:
        return Wrap(self.max_length, self.pad_token_id or 0, context.datasets)
