"""What an op is.

    stage        Columns -> Columns: stateless, a chunk at a time, on any worker
    accumulator  Block -> Block: one state per lane, in the lane's order, emptied at every flush sentinel

An op is a frozen description; `describe` gives all of it that defines the stream, for the fingerprint.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, ClassVar, Protocol

from zephon.errors import address_of
from zephon.io.dataset import Dataset
from zephon.ops.block import Block, addresses_of
from zephon.spec import fields
from zephon.spec.fields import OnError
from zephon.types import Dropped, IntArray, Json, Stage


@dataclasses.dataclass(frozen=True, kw_only=True)
class Op:
    """Base of all ops. Fields with metadata ``free`` are performance settings and no part of the stream."""

    name: ClassVar[str]

    def describe(self) -> Json:
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if not f.metadata.get("free")}
        return {"op": self.name, **own}

    def check(self) -> None:
        """Raises ConfigError for what can be known to be wrong before any data is read.

        The base compares each field with its annotation, see `zephon.spec.fields`; an op adds what several fields say together.
        """
        fields.check(self, self.name)


def free(default: Any = None) -> Any:
    """A field that never changes the stream."""
    return dataclasses.field(default=default, metadata={"free": True})


class StageOp(Op):
    """An op that runs on workers; after an accumulator, in the lane's thread."""

    packed: ClassVar[bool] = False  # whether it can also be run on packed rows, with `on_rows`
    on_error: OnError | None = None

    def stage(self) -> Stage:
        raise NotImplementedError

    def on_rows(self, block: Block) -> tuple[Block, list[int]]:
        """Runs on packed rows; returns new rows and which of the old ones they were."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class LaneContext:
    """What a lane's state may know: never a rank, a worker or a position in time.

    Args:
        lane: the lane's number.
        datasets: how many datasets the source has.
        sources: the datasets themselves, for names and addresses.
        mixture_at: the source's mixture at a position of the lane, in the order of the datasets; None where it has none.
    """

    lane: int
    datasets: int
    sources: Sequence[Dataset] = ()
    mixture_at: Callable[[int], Sequence[Fraction] | None] = lambda position: None

    @property
    def names(self) -> list[str]:
        return [dataset.name for dataset in self.sources]

    def note_address(self, error: BaseException) -> None:
        """Writes the address of the document that an error is about into its notes; a packed row has none."""
        about = address_of(error)
        if about is not None and about.dataset is not None and about.dataset >= 0 and self.sources:
            self.sources[about.dataset].note_address(error, f", lane {self.lane}")


class Accumulator(Protocol):
    """A lane's state of one accumulator op."""

    def start(self, position: int) -> None:
        """A block of chunks begins at this position of the lane: the only seed that randomness may use."""
        ...

    def push(self, block: Block) -> Block | None: ...

    def flush(self, *, final: bool) -> Block | None:
        """Emits what is held. With ``final`` the lane has ended; else the last tokens may be kept, see `Carrying`."""
        ...


class Counting:
    """Base of accumulators that drop documents: they note them here, and the lane takes the notes away."""

    def __init__(self) -> None:
        self.dropped: list[Dropped] = []

    def start(self, position: int) -> None:
        pass

    def drop(self, block: Block, rows: IntArray, reason: str) -> None:
        """Notes documents of a block as dropped; elements that are packed rows have no address and count as row -1."""
        if len(rows):
            self.dropped.append(Dropped(reason, *addresses_of(block, rows), int(block.counts[rows].sum())))


class Carrying(Accumulator, Protocol):
    """An accumulator that carries tokens over the sentinel by address: for each group, the last ones pushed to it."""

    @property
    def tokens_in(self) -> Sequence[int]:
        """Tokens pushed so far, by group; only differences mean anything."""
        ...

    @property
    def carried(self) -> Sequence[int]:
        """Tokens held now, by group, all of them the last ones pushed."""
        ...

    def group_of(self, dataset: int) -> int:
        """The group that a dataset's documents go to."""
        ...

    def takes_all(self, block: Block) -> bool:
        """Whether nothing of a block would be dropped."""
        ...

    def rebuild(self, block: Block) -> None:
        """Takes documents again that were pushed before the cursor, and emits nothing."""
        ...

    def keep_last(self, carried: Sequence[int]) -> None:
        """Ends the rebuilding: of each group only the last ``carried`` tokens stay."""
        ...


class AccumulatorOp(Op):
    """An op with a state per lane."""

    @property
    def reorders(self) -> bool:
        """Whether its outputs depend on where sentinels fall, so that the flush interval is part of the stream."""
        return True

    @property
    def carries(self) -> bool:
        """Whether its state is a `Carrying`."""
        return False

    @property
    def joins(self) -> bool:
        """Whether it makes no difference that blocks are pushed one by one or as one."""
        return False

    def open(self, context: LaneContext) -> Accumulator:
        raise NotImplementedError
