"""From loader to training: one ``StepBatch`` per optimizer step and rank, and the ``GlobalStep`` that all ranks agree on.

    loader -> StepBatch (this rank's rows)  --exchange-->  GlobalStep (token count, digests by slot, lanes, drain, error)

A rank holds its part of a whole step before the first forward, because the loss is divided by the count of trained tokens of
*all* ranks. One small exchange a step carries everything that ranks must agree on. So an error on one rank ends all of them
in the same step, and every rank holds the loader state of every lane, also of a rank that dies a moment later.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from zephon.cursor import SavedState
from zephon.errors import DataError, StateError, ZephonError
from zephon.spec.experiment import RunSpec
from zephon.types import IGNORE_INDEX, DropSummary, sum_by_reason


class Drain(enum.IntEnum):
    """Whether this process is to end its part in a membership after the step; of several ranks' wishes the greatest counts."""

    NO = 0
    STAY = 1
    """and takes its state into the next membership"""
    LEAVE = 2
    """for good: what it holds has to be on disk"""


@dataclass(frozen=True, kw_only=True)
class TokenRows:
    """Some sequences: inputs and labels int64 [n, T], positions int64 [n, T] restarting per document, or None.

    ``datasets``: int32 [n, T], each label's dataset as a place in ``StepBatch.trained``, or None.
    """

    input_ids: Tensor
    labels: Tensor
    positions: Tensor | None = None
    datasets: Tensor | None = None

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def tokens(self) -> int:
        """How many labels are trained."""
        return int((self.labels != IGNORE_INDEX).sum())

    def split(self, size: int) -> list[TokenRows]:
        """Consecutive parts of ``size`` rows, the last one maybe shorter."""
        return [self._slice(i, i + size) for i in range(0, len(self), size)]

    def padded(self, rows: int) -> TokenRows:
        """With rows of weight zero at the end, so that all ranks run the same number of forwards."""
        more = rows - len(self)
        if more <= 0:
            return self
        padded = self._map(lambda t: F.pad(t, (0, 0, 0, more)))
        return replace(padded, labels=F.pad(self.labels, (0, 0, 0, more), value=IGNORE_INDEX))

    def to(self, device: torch.device) -> TokenRows:
        return self._map(lambda t: t.to(device, non_blocking=True))

    def _slice(self, begin: int, end: int) -> TokenRows:
        return self._map(lambda t: t[begin:end])

    def _map(self, f: Callable[[Tensor], Tensor]) -> TokenRows:
        return TokenRows(
            input_ids=f(self.input_ids),
            labels=f(self.labels),
            positions=None if self.positions is None else f(self.positions),
            datasets=None if self.datasets is None else f(self.datasets),
        )


class Packed(NamedTuple):
    """What rows are packed from: ``segments`` are documents or pieces of them, ``padding`` is in tokens."""

    rows: int = 0
    segments: int = 0
    padding: int = 0

    def __add__(self, other: object) -> Packed:
        return Packed(*map(sum, zip(self, other, strict=True))) if isinstance(other, Packed) else NotImplemented


NOTHING_PACKED = Packed()


@dataclass(frozen=True, kw_only=True)
class StepBatch:
    """What one rank trains on in one optimizer step.

    Args:
        step: counted from 0.
        rows: this rank's sequences, in slot order.
        digests: SHA-256 of each sequence by its slot in the global batch.
        state: this rank's loader state after the step.
        by_dataset: tokens of each dataset, where the loader reports them.
        trained: labels of each dataset that are trained, in the order of ``rows.datasets``.
        packed: what its rows are packed from.
        dropped: documents dropped, of lanes that this rank reports, so that all ranks together name each document once.
    """

    step: int
    rows: TokenRows
    digests: dict[int, bytes]
    state: SavedState
    by_dataset: dict[str, int] = field(default_factory=dict)
    trained: dict[str, int] = field(default_factory=dict)
    packed: Packed = NOTHING_PACKED
    dropped: tuple[DropSummary, ...] = ()


class Feed(Protocol):
    """A source of steps, for one (dp_rank, dp_size)."""

    def restore(self, state: SavedState) -> None:
        """Continues after a state that holds the lanes of all ranks of some earlier membership."""

    def steps(self) -> Iterator[StepBatch]:
        """One StepBatch per optimizer step, until the data ends."""

    def dropped_at_end(self, state: SavedState | None) -> list[tuple[int, DropSummary]]:
        """(lane, what it drops) between a state and the end of the data, of lanes that this rank reports.

        ``state`` is the one after the last trained step, or None before the first; ``steps`` has ended by then.
        """

    def close(self) -> None:
        """Ends the threads and processes that feed ``steps``."""


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """What a rank reports to the others before it trains a step; ``step`` is None where its data has ended."""

    step: int | None
    rows: int = 0
    tokens: int = 0
    digests: dict[int, bytes] = field(default_factory=dict)
    lanes: dict[int, bytes] = field(default_factory=dict)
    by_dataset: dict[str, int] = field(default_factory=dict)
    trained: dict[str, int] = field(default_factory=dict)
    packed: Packed = NOTHING_PACKED
    dropped: tuple[DropSummary, ...] = ()
    drain: Drain = Drain.NO
    error: ZephonError | None = None


@dataclass(frozen=True, kw_only=True)
class GlobalStep:
    """One optimizer step as all ranks agreed on it.

    Args:
        rows: this rank's sequences, padded so that every rank has the same number.
        tokens: trained tokens of the step over all ranks.
        digests: of all sequences of the global batch, in slot order.
        state: the loader state after the step, with the lanes of all ranks.
        by_dataset, trained, packed: of StepBatch, added up over all ranks.
        dropped: documents dropped on the way to this step, by reason.
        drain: whether a rank is to end its part after this step.
    """

    step: int
    rows: TokenRows
    tokens: int
    digests: list[bytes]
    state: SavedState
    by_dataset: dict[str, int]
    trained: dict[str, int]
    packed: Packed
    dropped: tuple[DropSummary, ...]
    drain: Drain

    def without_rows(self) -> GlobalStep:
        """What is recorded of the step, without what was trained."""
        none = torch.zeros((0, 0), dtype=torch.int64)
        return replace(self, rows=TokenRows(input_ids=none, labels=none))


def rank_report(batch: StepBatch | None, *, drain: Drain, error: ZephonError | None) -> RankReport:
    if batch is None or error is not None:
        return RankReport(step=None, drain=drain, error=error)
    return RankReport(
        step=batch.step,
        rows=len(batch.rows),
        tokens=batch.rows.tokens,
        digests=batch.digests,
        lanes=batch.state["lanes"],
        by_dataset=batch.by_dataset,
        trained=batch.trained,
        packed=batch.packed,
        dropped=batch.dropped,
        drain=drain,
    )


def first_error(reports: Sequence[RankReport]) -> ZephonError | None:
    """The error of the first rank that reported one, with that rank in a note."""
    for rank, report in enumerate(reports):
        if report.error is not None:
            report.error.add_note(f"raised on data-parallel rank {rank}")
            return report.error
    return None


def agree(batch: StepBatch | None, reports: Sequence[RankReport]) -> GlobalStep | None:
    """Combines the reports of all data-parallel ranks; None when the data has ended.

    It ends where the first rank cannot fill its part of a step, as it does for a rank that has all lanes.

    Raises:
        ZephonError: the error of the first rank that reported one, with that rank in a note.
        StateError: the ranks are at different steps, or slots are missing or doubled.
    """
    if (error := first_error(reports)) is not None:
        raise error
    if any(report.step is None for report in reports):
        return None
    digests: dict[int, bytes] = {}
    for report in reports:
        digests.update(report.digests)
    steps = {report.step for report in reports}
    if batch is None or len(steps) != 1 or sorted(digests) != list(range(sum(len(report.digests) for report in reports))):
        raise StateError(
            f"the ranks do not hold one global batch: steps {[report.step for report in reports]}, slots {sorted(digests)}",
            follows="the step would train some rows twice or not at all",
            remedy="resume from the last checkpoint; if it happens again, run `zephon verify` on the run",
        )
    return GlobalStep(
        step=batch.step,
        rows=batch.rows.padded(max(report.rows for report in reports)),
        tokens=sum(report.tokens for report in reports),
        digests=[digests[slot] for slot in sorted(digests)],
        state={**batch.state, "lanes": {lane: cursor for report in reports for lane, cursor in report.lanes.items()}},
        by_dataset=dict(sorted(_summed(report.by_dataset for report in reports).items())),
        trained=_summed(report.trained for report in reports),
        packed=sum((report.packed for report in reports), NOTHING_PACKED),
        dropped=sum_by_reason(summary for report in reports for summary in report.dropped),
        drain=max(report.drain for report in reports),
    )


def _summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """By name, in the order of first appearance."""
    sums: dict[str, int] = {}
    for part in counts:
        for name, count in part.items():
            sums[name] = sums.get(name, 0) + count
    return sums


def concatenate(parts: Sequence[TokenRows]) -> TokenRows:
    """All rows of several microbatches as one."""

    def together(tensors: list[Tensor | None]) -> Tensor | None:
        return None if any(t is None for t in tensors) else torch.cat([t for t in tensors if t is not None])

    return TokenRows(
        input_ids=torch.cat([part.input_ids for part in parts]),
        labels=torch.cat([part.labels for part in parts]),
        positions=together([part.positions for part in parts]),
        datasets=together([part.datasets for part in parts]),
    )


def one_batch(spec: RunSpec) -> str:
    """What a global batch takes, in words."""
    wanted = f"{spec.global_batch_size} sequences of {spec.pipeline.context_length + 1} tokens"
    return f"{wanted}, assigned to {spec.lanes.count} lanes"


def nothing_to_train_on(spec: RunSpec) -> DataError:
    """The data has ended before the first step."""
    return DataError(
        f"the data ends before the first step: it is not enough for {one_batch(spec)}"
        + (f" in chunks of {spec.data.chunk_bytes:,} bytes" if spec.data.chunk_bytes else ""),
        remedy="use smaller chunks (data.chunk_bytes), fewer lanes, more data, or data.exhausted=repeat",
    )
