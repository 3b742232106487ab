"""Which documents of a dataset are used: by a filter on their fields, and by a part of all of them that their names decide.

    where="lang == 'en'"        see `zephon.io.where`
    fraction=(0.0, 0.9)         the documents whose hash, as a part of 1, is at least 0 and less than 0.9

The hash is that of a shard's file name and the document's row, so it is the same in every run, on every machine and under
every path: (0.0, 0.9) for training and (0.9, 1.0) for evaluation share no document and miss none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from zephon.errors import ConfigError, DataError, ErrorAddress, address_error
from zephon.io.field import column_of
from zephon.io.where import equalities, fields_of, parsed, rows_where
from zephon.seeds import derive, mixed
from zephon.types import Array, Columns


@dataclasses.dataclass(frozen=True)
class Selection:
    """See the module; None selects everything."""

    where: str | None = None
    fraction: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.where is not None:
            parsed(self.where)
        if self.fraction is not None and not 0 <= self.fraction[0] < self.fraction[1] <= 1:
            raise ConfigError(
                f"fraction={list(self.fraction)} is no part of all documents",
                remedy="give where it begins and where it ends, from 0 to 1: [0, 0.9], and [0.9, 1] for what is held out",
            )

    def __bool__(self) -> bool:
        return self.where is not None or self.fraction is not None

    def lines(self) -> list[str]:
        """What of it defines the data, for the dataset's identity."""
        return [f"{name} {value!r}\n" for name, value in dataclasses.asdict(self).items() if value is not None]

    def disjoint(self, other: Selection) -> bool:
        """Whether no document can be in both: parts that do not overlap, or one field that must have two values."""
        if self.fraction is not None and other.fraction is not None:
            first, second = sorted((self.fraction, other.fraction))
            if first[1] <= second[0]:
                return True
        if self.where is None or other.where is None:
            return False
        values, theirs = equalities(self.where), equalities(other.where)
        return any(values[field] != theirs[field] for field in values.keys() & theirs.keys())


def select(columns: Columns, selection: Selection, shards: Sequence[str], bad: list[DataError] | None) -> Columns:
    """The selected documents.

    Args:
        columns: of one chunk.
        selection: which of its documents.
        shards: names of the dataset's shards.
        bad: takes the errors about documents with a value that the filter cannot compare; without it the first is raised.
    """
    if selection.fraction is not None:
        columns = columns.take(np.flatnonzero(_in_part(columns, selection.fraction, shards)))
    if selection.where is None or not len(columns):
        return columns
    return columns.take(np.array(_passing(columns, selection.where, shards, bad), np.int64))


def _in_part(columns: Columns, fraction: tuple[float, float], shards: Sequence[str]) -> Array:
    hashes = np.zeros(len(columns), np.uint64)
    for shard in np.unique(columns.shard).tolist():
        rows = columns.shard == shard
        name = shards[shard].rpartition("/")[2]
        hashes[rows] = mixed(derive(0, "fraction", name), columns.row[rows])
    begin, end = (int(edge * (1 << 64)) for edge in fraction)
    inside = hashes >= np.uint64(begin)
    chosen: Array = inside if end == 1 << 64 else inside & (hashes < np.uint64(end))
    return chosen


def _passing(columns: Columns, where: str, shards: Sequence[str], bad: list[DataError] | None) -> list[int]:
    values = {}
    for field in fields_of(where):
        values[field], present = column_of(columns, field)
        if present is not None and columns.records is None and not present.any():
            raise _no_field(columns, field, shards[int(columns.shard[0])])
    try:
        return rows_where(where, values.__getitem__, len(columns))
    except TypeError:
        passing = []
    for row in range(len(columns)):
        try:
            passing += [row] if rows_where(where, lambda field, row=row: [values[field][row]], 1) else []  # type: ignore[misc]
        except TypeError as error:
            wrong = _cannot_compare(columns, row, where, error)
            if bad is None:
                raise wrong from error
            bad.append(wrong)
    return passing


def _cannot_compare(columns: Columns, row: int, where: str, cause: TypeError) -> DataError:
    error = DataError(
        f"where={where!r} cannot be asked of a document: {cause}",
        follows="whether it belongs to the data would be guessed",
        remedy="compare each field with a value of its own kind, or drop such documents: on_error='quarantine'",
    )
    place = ErrorAddress(int(columns.shard[row]), int(columns.row[row]), kind="a field that where cannot compare")
    address_error(error, place)
    return error


def _no_field(columns: Columns, field: str, shard: str) -> ConfigError:
    return ConfigError(
        f"where names the field {field!r}, which shard {shard!r} does not have; it has {sorted(columns.fields)}",
        follows="no document of it would pass, unseen",
        remedy="name a field that every shard has",
    )
