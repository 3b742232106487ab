"""Quarantine: a document that an op cannot take is set aside instead of ending the run.

Which documents those are is decided once. A lane's cursor names the ones that a replay meets again, as (position of the
chunk, range of the chunk, row); they are taken out before any op sees them, so that code that fails only sometimes gives
the same stream after every restart.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from zephon.errors import ConfigError, DataError, ErrorAddress, address_error, address_of, nearest
from zephon.types import Chunk, Columns, Dropped, IntArray, Stage

SHARE, FEW = 0.5, 8  # of a shard's documents in one chunk that may fail; so few of them never are too many

QuarantinedIds = Sequence[tuple[int, int]]
"""Documents of one chunk that are in quarantine: (range of the chunk, row)."""


@dataclasses.dataclass(frozen=True)
class QuarantinePolicy:
    """Which documents go into quarantine, and how many may.

    Args:
        datasets: by dataset, whether its bad documents are quarantined instead of ending the run.
        ops: by stage, the op's own choice, or None to follow the dataset's.
        budget: documents a lane may put into quarantine over the whole run.
    """

    datasets: tuple[bool, ...] = ()
    ops: tuple[bool | None, ...] = ()
    budget: int = 0

    def of(self, dataset: int, stage: int | None = None) -> bool:
        own = self.ops[stage] if stage is not None and self.ops else None
        return bool(self.datasets and self.datasets[dataset]) if own is None else own

    def run(
        self, stages: Sequence[Stage], columns: Columns, chunk: Chunk, bad: Sequence[Exception], known: QuarantinedIds
    ) -> Columns:
        """Runs the stages over a chunk without the documents that are in quarantine or get there now.

        Args:
            bad: errors about documents that could not even be read.
            known: documents that are in quarantine already.

        Raises:
            DataError: more documents fail than the budget allows, or most of those of one shard.
        """
        read = columns.shard
        quarantined, dropped = list(known), []
        if known:
            shards = np.array([chunk.ranges[number].shard for number, _ in known])
            rows = np.array([row for _, row in known])
            dropped.append(Dropped("quarantined before", np.full(len(rows), chunk.dataset), shards, rows))
            rows_out = [_rows_of(columns, int(shard), int(row)) for shard, row in zip(shards, rows, strict=True)]
            columns = _without(columns, np.concatenate(rows_out))
        for error in bad:
            document = _id_of(chunk, _address(error))
            if document not in quarantined:
                quarantined.append(document)
                dropped.append(_dropped(chunk, error))
        for number, stage in enumerate(stages):
            columns, errors = self.attempt(stage, number, columns, chunk.dataset, len(quarantined))
            quarantined += [_id_of(chunk, _address(error)) for error in errors]
            dropped += [_dropped(chunk, error) for error in errors]
        _check_share(chunk, quarantined, [_address(error).shard for error in bad], read)
        columns.quarantined = quarantined
        columns.dropped = dropped + columns.dropped
        return columns

    def attempt(
        self, stage: Stage, number: int, columns: Columns, dataset: int, already: int
    ) -> tuple[Columns, list[Exception]]:
        """A stage's result over the documents that it can take, and the errors about those that it cannot.

        Args:
            number: of the stage.
            already: documents of the chunk that are in quarantine.

        Raises:
            Exception: what the stage raised, where its documents are not quarantined or it is about none of them.
            DataError: more documents fail than the budget allows.
        """
        errors: list[Exception] = []
        while True:
            try:
                return stage(columns), errors
            except Exception as error:
                address = address_of(error)
                if address is None or not self.of(dataset, number):
                    raise
                failed = _rows_of(columns, address.shard, address.row)
                if not len(failed):
                    raise
                columns = _without(columns, failed)
                errors.append(error)
                if already + len(errors) > self.budget:
                    raise budget_exceeded(self.budget, error) from error


def quarantine_policy(
    chosen: str | Mapping[str, str], names: Sequence[str], ops: Sequence[str | None], budget: int
) -> QuarantinePolicy:
    """From the option ``on_error`` (one choice, or a choice by dataset) and the ops' own choices.

    Raises:
        ConfigError: a name that is no dataset.
    """
    by_dataset = dict.fromkeys(names, chosen) if isinstance(chosen, str) else {**dict.fromkeys(names, "raise"), **chosen}
    unknown = sorted(set(by_dataset) - set(names))
    if unknown:
        raise ConfigError(
            f"on_error names {unknown[0]!r}, which is no dataset",
            remedy=nearest(unknown[0], names),
        )
    own = [None if choice is None else choice == "quarantine" for choice in ops]
    # The last stage is the loader's own: it extracts stored token ids from the documents.
    return QuarantinePolicy(tuple(by_dataset[name] == "quarantine" for name in names), (*own, None), budget)


def _check_share(chunk: Chunk, quarantined: QuarantinedIds, unread: Sequence[int], read: IntArray) -> None:
    """Raises DataError where most of the documents of a shard, as far as this chunk holds them, are in quarantine.

    Args:
        unread: the shards of documents that could not even be read.
        read: the shards of those that could be.
    """
    failed = collections.Counter(chunk.ranges[number].shard for number, _ in quarantined)
    for shard, count in failed.items():
        total = unread.count(shard) + int(np.count_nonzero(read == shard))
        if count >= FEW and count > SHARE * total:
            error = DataError(
                f"{count} of {total} documents of one shard failed, where at most {SHARE:.0%} may be quarantined",
                follows="the shard is no data of the kind that was asked for, and would be dropped nearly whole",
                remedy="look at the shard: repair, convert or remove it, or correct the function that its documents fail in",
            )
            row = next(row for number, row in quarantined if chunk.ranges[number].shard == shard)
            address_error(error, ErrorAddress(shard, row))
            raise error


def budget_exceeded(budget: int, cause: Exception | None = None) -> DataError:
    """The error that more documents failed than may be dropped."""
    return DataError(
        f"more than quarantine_budget={budget} documents of a lane failed" + (f"; the last: {cause}" if cause else ""),
        follows="the run would go on with data that nobody chose",
        remedy="repair the data or the function, or raise the budget",
    )


def _address(error: Exception) -> ErrorAddress:
    address = address_of(error)
    assert address is not None
    return address


def _rows_of(columns: Columns, shard: int, row: int) -> IntArray:
    return np.flatnonzero((columns.shard == shard) & (columns.row == row))


def _without(columns: Columns, rows: IntArray) -> Columns:
    return columns.take(np.setdiff1d(np.arange(len(columns)), rows))


def _id_of(chunk: Chunk, address: ErrorAddress) -> tuple[int, int]:
    return next(i for i, part in enumerate(chunk.ranges) if part.shard == address.shard), address.row


def _dropped(chunk: Chunk, error: Exception) -> Dropped:
    # By what is wrong and not where, as far as that is known, so that documents with one fault are counted together.
    address = _address(error)
    what = error.reason if isinstance(error, (UnicodeDecodeError, UnicodeEncodeError)) else str(error).split("\n", 1)[0]
    reason = "quarantined: " + (address.kind or f"{type(error).__name__}: {what}")
    return Dropped(reason[:200], np.array([chunk.dataset]), np.array([address.shard]), np.array([address.row]))
