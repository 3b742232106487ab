"""What an op is.

    stage        Columns -> Columns: stateless, a chunk at a time, on any worker
    accumulator  Block -> Block: one state per lane, in the lane's order, emptied at every flush sentinel

An op is a frozen description; `describe` gives all of it that defines the stream, for the fingerprint.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Protocol

from zephon.ops.block import Block
from zephon.types import Columns, Stage


@dataclasses.dataclass(frozen=True, kw_only=True)
class Op:
    """Base of all ops. Fields with metadata ``free`` are performance settings and no part of the stream."""

    name: ClassVar[str]

    def describe(self) -> dict[str, Any]:
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if not f.metadata.get("free")}
        return {"op": self.name, **own}

    def check(self) -> None:
        """Raises ConfigError for what can be known to be wrong before any data is read."""


def free(default: Any = None) -> Any:
    """A field that never changes the stream."""
    return dataclasses.field(default=default, metadata={"free": True})


class StageOp(Op):
    """An op that runs on workers."""

    def stage(self) -> Stage:
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class LaneContext:
    """What a lane's state may know: never a rank, a worker or a position in time.

    Args:
        lane: the lane's number.
        datasets: how many datasets the source has.
    """

    lane: int
    datasets: int


class Accumulator(Protocol):
    """A lane's state of one accumulator op."""

    def start(self, position: int) -> None:
        """A block of chunks begins at this position of the lane: the only seed that randomness may use."""
        ...

    def push(self, block: Block) -> Block | None: ...

    def flush(self, *, final: bool) -> Block | None:
        """Gives out what is held. With ``final`` the lane has ended; else a tail may be kept, see `Carrying`."""
        ...


class Carrying(Accumulator, Protocol):
    """An accumulator that carries a tail across the sentinel by address: the last ``carried`` tokens pushed to it."""

    @property
    def inflow(self) -> int:
        """Tokens pushed so far; only differences mean anything."""
        ...

    @property
    def carried(self) -> int:
        """Tokens held now, all of them the last ones pushed."""
        ...

    def prime(self, block: Block) -> None:
        """Takes documents again that were pushed before the cursor: keeps them without giving anything out."""
        ...

    def trim(self, carried: int) -> None:
        """Ends priming: keeps the last ``carried`` tokens only."""
        ...


class AccumulatorOp(Op):
    """An op with a state per lane.

    ``reorders`` says that the order or content of its outputs depends on where sentinels fall, so that the flush
    interval is part of the stream.
    """

    reorders: ClassVar[bool] = True
    carries: ClassVar[bool] = False

    def open(self, context: LaneContext) -> Accumulator:
        raise NotImplementedError


class StageAccumulator:
    """A stage behind an accumulator runs in the lane's thread, on what comes out of it."""

    def __init__(self, stage: Any) -> None:
        self._stage = stage

    def start(self, position: int) -> None:
        pass

    def push(self, block: Block) -> Block | None:
        result: Block | None = self._stage(block)
        return result

    def flush(self, *, final: bool) -> Block | None:
        return None


def run_stages(stages: list[Stage], columns: Columns) -> Columns:
    for stage in stages:
        columns = stage(columns)
    return columns
