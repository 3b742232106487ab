"""A stream of tokens with its document boundaries, and the rows cut from it.

values       a a a a a | b b b | c c c c c c c c | d d
boundaries   0           5       8                 16          where documents begin, and whose they are
rows of 6    aaaaab  bbcccc  ccccdd                            each row is segments: [a: 0, b: 5] [b: 0, c: 2] [c: 0, d: 4]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from zephon.errors import DataError, ErrorAddress, address_error
from zephon.ops.block import Block, Part, identity
from zephon.types import Array, IntArray, Origins, Ragged

_NONE = np.empty(0, np.int64)


def aligned_fields(part: Part) -> list[str]:
    """Fields with one value a token: ``input_ids`` and all ragged fields of the same lengths. Others cannot be packed."""
    ids = part.fields["input_ids"]
    assert isinstance(ids, Ragged)
    same = [
        name
        for name, column in part.fields.items()
        if isinstance(column, Ragged)
        and name != "input_ids"
        and (column.offsets is ids.offsets or np.array_equal(column.offsets, ids.offsets))
    ]
    return ["input_ids", *sorted(same)]


def same_fields(names: list[str], parts: Sequence[Part]) -> list[str]:
    """The fields that are packed, where these names are known to be: all parts must have the same.

    Raises:
        DataError: a part has a field with one value a token and another has not; names the first document of the part.
    """
    for part in parts:
        own = aligned_fields(part) if len(part) else names
        if own != names:
            raise fields_differ(sorted({*own} ^ {*names})[0], part)
    return names


def fields_differ(name: str, part: Part) -> DataError:
    """The error that documents have different fields, with the address of the part's first document where it has one."""
    error = DataError(
        f"some documents have a field {name!r} with one value for each token and others have not",
        follows="a row of both kinds would have no value for some tokens",
        remedy="give all documents the same fields, or keep kinds apart with homogeneity='full'",
    )
    if part.documents is not None:
        first = part.documents
        address_error(error, ErrorAddress(int(first.shard[0]), int(first.row[0]), int(part.datasets[0])))
    return error


class Boundaries(NamedTuple):
    """Where documents begin in a stream.

    Args:
        starts: int64, ascending; the first is 0 unless the stream is empty.
        owners: int64[documents, 4], as in `Origins`.
    """

    starts: IntArray
    owners: IntArray

    def extended(self, offsets: IntArray, owners: IntArray, after: int) -> Boundaries:
        """With further documents, which lie at ``offsets`` after that many tokens. Those without a token have no boundary."""
        begins = offsets[:-1]
        filled = offsets[1:] > begins
        if not filled.all():
            begins, owners = begins[filled], owners[filled]
        return Boundaries(np.concatenate([self.starts, begins + after]), np.concatenate([self.owners, owners]))

    def split(self, at: int, end: int) -> tuple[Boundaries, Boundaries]:
        """Those of the first ``at`` tokens, and those of the others up to ``end``: a document that is cut begins anew there."""
        first = int(self.starts.searchsorted(at))
        starts, owners = self.starts[first:] - at, self.owners[first:]
        if at < end and (len(starts) == 0 or starts[0] != 0):
            starts = np.concatenate([np.zeros(1, np.int64), starts])
            owners = np.concatenate([self.owners[first - 1 : first], owners])
            owners[0, 3] += at - self.starts[first - 1]
        return Boundaries(self.starts[:first], self.owners[:first]), Boundaries(starts, owners)


@dataclasses.dataclass(slots=True, eq=False)
class Stream:
    """Tokens laid end to end: ``values`` by field, one a token, and the boundaries of their documents."""

    values: dict[str, Array]
    boundaries: Boundaries

    @staticmethod
    def empty() -> Stream:
        return Stream({}, Boundaries(np.empty(0, np.int64), np.empty((0, 4), np.int64)))

    def __len__(self) -> int:
        return len(self.values["input_ids"]) if self.values else 0

    def append(self, block: Block) -> int:
        """Adds the documents of a block at the end; returns how many tokens they are."""
        if len(block) == 0:
            return 0
        columns = {name: block.ragged(name) for name in self._names(block)}
        offsets = columns["input_ids"].offsets
        self.boundaries = self.boundaries.extended(offsets, block.owners(), len(self))
        self._hold({name: column.values for name, column in columns.items()})
        return int(offsets[-1])

    def split(self, at: int) -> tuple[Stream, Stream]:
        """The first ``at`` tokens and the others. A document that is cut begins anew in the others."""
        head, tail = self.boundaries.split(at, len(self))
        # Copied, so that a short remainder does not keep its whole chunk in memory.
        others = Stream({name: values[at:].copy() for name, values in self.values.items()}, tail)
        return Stream({name: values[:at] for name, values in self.values.items()}, head), others

    def pour(self, block: Block, length: int, datasets: int) -> tuple[Block | None, int]:
        """Adds the documents of a block and takes all full rows of ``length`` out.

        As `append` and then `split`, without copying the tokens of full rows where that can be avoided.

        Returns:
            (rows or None, tokens of the block).
        """
        columns = {name: block.streams(name) for name in self._names(block)}
        offsets = Ragged.joined_offsets(columns["input_ids"])
        tokens = int(offsets[-1])
        total = len(self) + tokens
        if total < length:
            return None, self.append(block)
        count = total // length
        boundaries = self.boundaries.extended(offsets, block.owners(), len(self))
        taken, self.boundaries = boundaries.split(count * length, total)
        return cut_rows(self._full_rows(columns, length), taken, count, length, datasets), tokens

    def _names(self, block: Block) -> list[str]:
        return same_fields(list(self.values) or aligned_fields(block.parts[0]), block.parts)

    def _hold(self, values: dict[str, Array]) -> None:
        held = self.values
        self.values = {name: np.concatenate([held[name], more]) for name, more in values.items()} if held else dict(values)

    def _full_rows(self, columns: dict[str, list[Ragged]], length: int) -> list[dict[str, Array]]:
        """All full rows as arrays [rows, length]; the values after the last of them are held.

        A row that begins in what was held, or in an earlier part of the block, is copied; all others are views.
        """
        arrays: list[dict[str, Array]] = []
        for parts in zip(*columns.values(), strict=True):
            values = {name: part.values for name, part in zip(columns, parts, strict=True)}
            held, tokens = len(self), len(values["input_ids"])
            if held + tokens < length:
                self._hold(values if held else {name: array.copy() for name, array in values.items()})
                continue
            missing = length - held if held else 0  # what completes the row that was begun
            end = missing + (tokens - missing) // length * length
            if missing:
                begun = self.values
                arrays.append({k: np.concatenate([begun[k], v[:missing]]).reshape(1, length) for k, v in values.items()})
            if end > missing:
                arrays.append({name: array[missing:end].reshape(-1, length) for name, array in values.items()})
            # Copied, so that a short remainder does not keep its whole chunk in memory.
            self.values = {name: array[end:].copy() for name, array in values.items()}
        return arrays


def cut_rows(arrays: list[dict[str, Array]], boundaries: Boundaries, count: int, length: int, datasets: int) -> Block:
    """Full rows as a block, a part for each of the arrays.

    Args:
        arrays: fields of consecutive rows, [rows, length].
        boundaries: of their documents, in tokens over all rows; the first document begins at 0.
        count: rows altogether.
    """
    edges = np.arange(0, (count + 1) * length, length)
    begins = _segment_begins(boundaries.starts, edges[:-1])
    offsets = begins.searchsorted(edges)  # the first segment of each row
    owners, counts = _segment_owners(boundaries, begins, count, length, datasets)
    within_row = (begins % length).astype(np.int32)
    used = np.full(count, length, np.int64)
    parts: list[Part] = []
    part, row, at = np.empty(count, np.int64), np.empty(count, np.int64), 0
    for fields in arrays:
        rows = len(fields["input_ids"])
        first, last = int(offsets[at]), int(offsets[at + rows])
        starts = Ragged(within_row[first:last], offsets[at : at + rows + 1] - first)
        part[at : at + rows], row[at : at + rows] = len(parts), np.arange(rows)
        origins = Origins(owners[first:last], starts)
        parts.append(Part(dict(fields), _NONE, starts, used[at : at + rows], origins=origins))
        at += rows
    return Block(parts, part, row, counts)


def _segment_begins(starts: IntArray, edges: IntArray) -> IntArray:
    """A segment begins where a document begins or a row does; where both do, only one."""
    begins = np.concatenate([starts, edges])
    begins.sort()
    fresh = np.empty(len(begins), bool)
    fresh[0] = True
    np.not_equal(begins[1:], begins[:-1], out=fresh[1:])
    return begins[fresh]


def _segment_owners(
    boundaries: Boundaries, begins: IntArray, count: int, length: int, datasets: int
) -> tuple[IntArray, IntArray]:
    """int64[segments, 4]: the document of each segment; and int64[rows, datasets]: each row's tokens by dataset."""
    starts, sources = boundaries.starts, boundaries.owners[:, 0]
    counts = np.zeros((count, datasets), np.int64)
    which = starts.searchsorted(begins, side="right") - 1
    owners = boundaries.owners.take(which, axis=0)
    owners[:, 3] += begins - starts[which]
    if datasets == 1 or (sources == sources[0]).all():
        counts[:, sources[0]] = length
    else:
        np.add.at(counts, (begins // length, owners[:, 0]), np.append(begins[1:], count * length) - begins)
    return owners, counts


def make_rows(
    fields: dict[str, Array], starts: IntArray, owners: IntArray, offsets: IntArray, used: IntArray, datasets: int
) -> Block:
    """Packed rows as a block.

    Args:
        fields: arrays [rows, length].
        starts, owners: of all segments, row by row; starts are relative to their row.
        offsets: int64[rows + 1], the segments of each row.
        used: int64[rows], tokens before the padding.
        datasets: how many datasets the source has.
    """
    rows = len(used)
    ends = np.append(starts[1:], 0)
    ends[offsets[1:] - 1] = used
    row = np.repeat(np.arange(rows), np.diff(offsets))
    counts = np.bincount(row * datasets + owners[:, 0], weights=ends - starts, minlength=rows * datasets)
    begins = Ragged(starts.astype(np.int32), offsets)
    part = Part(dict(fields), _NONE, begins, used, origins=Origins(owners, begins))
    return identity(part, counts.astype(np.int64).reshape(rows, datasets))
