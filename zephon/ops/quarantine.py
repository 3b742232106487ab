"""Quarantine: a document that an op cannot take is set aside instead of ending the run.

Which documents those are is decided once. A lane's cursor names the ones that a replay meets again, as (position of the
chunk, piece of the chunk, row); they are taken out before any op sees them, so that code that fails only sometimes gives
the same stream after every restart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from zephon.errors import ConfigError, DataError, address_of, nearest
from zephon.types import Chunk, Columns, Dropped, IntArray, Stage

Known = Sequence[tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class Guard:
    """Who may quarantine.

    Args:
        datasets: by dataset, whether its documents are quarantined rather than raised about.
        ops: by stage, the op's own choice, or None to follow the dataset's.
        budget: documents a lane may put into quarantine over the whole run.
    """

    datasets: tuple[bool, ...] = ()
    ops: tuple[bool | None, ...] = ()
    budget: int = 0

    def of(self, dataset: int, stage: int | None = None) -> bool:
        own = self.ops[stage] if stage is not None and self.ops else None
        return bool(self.datasets and self.datasets[dataset]) if own is None else own

    def run(self, stages: Sequence[Stage], columns: Columns, chunk: Chunk, bad: Sequence[Exception], known: Known) -> Columns:
        """Runs the stages over a chunk without the documents that are in quarantine or get there now.

        Args:
            bad: errors about documents that could not even be read.
            known: (piece, row) of those already in quarantine.
        """
        places: list[tuple[int, int]] = list(known)
        dropped: list[Dropped] = []
        if known:
            shards = np.array([chunk.pieces[piece].shard for piece, _ in known])
            rows = np.array([row for _, row in known])
            dropped.append(Dropped("quarantined before", np.full(len(rows), chunk.dataset), shards, rows))
            gone = [_find(columns, int(shard), int(row)) for shard, row in zip(shards, rows, strict=True)]
            columns = columns.take(np.setdiff1d(np.arange(len(columns)), np.concatenate(gone)))
        for error in bad:
            place = _place(chunk, error)
            if place not in places:
                places.append(place)
                dropped.append(_dropped(chunk, place, error))
        for number, stage in enumerate(stages):
            while True:
                try:
                    result = stage(columns)
                    break
                except Exception as error:
                    if not self.of(chunk.dataset, number) or address_of(error) is None:
                        raise
                    place = _place(chunk, error)
                    gone_now = _find(columns, chunk.pieces[place[0]].shard, place[1])
                    if not len(gone_now):
                        raise
                    columns = columns.take(np.setdiff1d(np.arange(len(columns)), gone_now))
                    places.append(place)
                    dropped.append(_dropped(chunk, place, error))
                    if len(places) > self.budget:
                        break_budget(self.budget, error)
            columns = result
        columns.quarantined = places
        columns.dropped = dropped + columns.dropped
        return columns


def guard_for(chosen: str | Mapping[str, str], names: Sequence[str], ops: Sequence[str | None], budget: int) -> Guard:
    """From the option ``on_error`` (one word, or a word by dataset) and what ops say themselves.

    Raises:
        ConfigError: a name that is no dataset.
    """
    by_dataset = dict.fromkeys(names, chosen) if isinstance(chosen, str) else {**dict.fromkeys(names, "raise"), **chosen}
    unknown = sorted(set(by_dataset) - set(names))
    if unknown:
        raise ConfigError(
            f"on_error names {unknown[0]!r}, which is no dataset",
            follows="it would have no effect",
            remedy=nearest(unknown[0], names),
        )
    own = [None if choice is None else choice == "quarantine" for choice in ops]
    # The last stage is ours: it takes stored token ids out of the documents.
    return Guard(tuple(by_dataset[name] == "quarantine" for name in names), (*own, None), budget)


def break_budget(budget: int, cause: Exception | None = None) -> None:
    """Raises DataError: more documents failed than may be left out."""
    raise DataError(
        f"more than quarantine_budget={budget} documents of a lane failed" + (f"; the last: {cause}" if cause else ""),
        follows="the run would go on with data that nobody chose",
        remedy="mend the data or the function, or raise the budget",
    ) from cause


def _find(columns: Columns, shard: int, row: int) -> IntArray:
    return np.flatnonzero((columns.shard == shard) & (columns.row == row))


def _place(chunk: Chunk, error: Exception) -> tuple[int, int]:
    address = address_of(error)
    assert address is not None
    return next(i for i, piece in enumerate(chunk.pieces) if piece.shard == address.shard), address.row


def _dropped(chunk: Chunk, place: tuple[int, int], error: Exception) -> Dropped:
    # By what is wrong and not where, as far as that is known, so that documents with one fault are counted together.
    address = address_of(error)
    what = error.reason if isinstance(error, (UnicodeDecodeError, UnicodeEncodeError)) else str(error).split("\n", 1)[0]
    reason = "quarantined: " + ((address.kind if address is not None else "") or f"{type(error).__name__}: {what}")
    shard = chunk.pieces[place[0]].shard
    return Dropped(reason[:200], np.array([chunk.dataset]), np.array([shard]), np.array([place[1]]))
