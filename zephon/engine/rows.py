"""Row buffers: packed rows copied together, of which batches are slices."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from zephon.ops.block import Block, Part
from zephon.ops.packing.stream import fields_differ
from zephon.types import Array, Column, IntArray, Origins, Ragged


class Gathered(NamedTuple):
    """The values of some elements.

    Args:
        fields: columns by name.
        starts: where segments begin in each packed row; None for documents.
        used: int64[n], tokens of each element before its padding.
        origins: the documents that they are made of.
    """

    fields: dict[str, Column]
    starts: Ragged | None
    used: IntArray
    origins: Origins


class RowBuffer:
    """Packed rows copied together in order.

    Args:
        fields: arrays [rows, length] by name.
        starts: where segments begin in each row.
        owners: int64[segments, 4], as in `Origins`.
        used: int64[rows], tokens before the padding.
        counts: int64[rows, datasets], each row's tokens by dataset.
    """

    def __init__(self, fields: dict[str, Array], starts: Ragged, owners: IntArray, used: IntArray, counts: IntArray) -> None:
        self.fields, self.starts, self.owners, self.used, self.counts = fields, starts, owners, used, counts
        sums = np.zeros((len(counts) + 1, counts.shape[1]), np.int64)
        np.cumsum(counts, axis=0, out=sums[1:])
        # Before each row, and after the last: plain numbers, since they are asked for one by one.
        self.sums: list[list[int]] = sums.tolist()
        self.edges: list[int] = starts.offsets.tolist()

    def __len__(self) -> int:
        return len(self.used)

    def block(self, first: int, last: int) -> Block:
        """Some of the rows as a block."""
        origins = Origins(self.owners, self.starts)
        part = Part(dict(self.fields), np.empty(0, np.int64), self.starts, self.used, origins=origins)
        return Block([part], np.zeros(last - first, np.int64), np.arange(first, last), self.counts[first:last])


class RowSlice:
    """Consecutive rows of a buffer."""

    __slots__ = ("_tokens", "buffer", "first", "last")

    def __init__(self, buffer: RowBuffer, first: int, last: int) -> None:
        self.buffer, self.first, self.last = buffer, first, last
        self._tokens = [*map(operator.sub, buffer.sums[last], buffer.sums[first])]

    def __len__(self) -> int:
        return self.last - self.first

    def tokens(self) -> list[int]:
        """Tokens of all rows together, by dataset."""
        return self._tokens

    def gather(self) -> Gathered:
        """The rows' values, as views."""
        buffer, first, last = self.buffer, self.first, self.last
        begin, end = buffer.edges[first], buffer.edges[last]
        starts = Ragged(buffer.starts.values[begin:end], buffer.starts.offsets[first : last + 1] - begin)
        fields: dict[str, Column] = {name: array[first:last] for name, array in buffer.fields.items()}
        return Gathered(fields, starts, buffer.used[first:last], Origins(buffer.owners[begin:end], starts))


def collect(block: Block) -> RowBuffer:
    """Copies packed rows, all with the same fields, into a buffer."""
    # Every row's number when the rows of all parts are concatenated.
    edges = np.zeros(len(block.parts) + 1, np.int64)
    np.cumsum([len(part) for part in block.parts], out=edges[1:])
    numbers = edges[block.part] + block.row
    fields = {name: _scattered([part.fields[name] for part in block.parts], edges, numbers) for name in block.parts[0].fields}
    used = np.concatenate([part.used for part in block.parts if part.used is not None])[numbers]
    starts = Ragged.joined([part.starts for part in block.parts if part.starts is not None])
    owners = np.concatenate([part.origins.owners for part in block.parts if part.origins is not None])
    segments = starts.places(numbers)
    taken = Ragged(starts.values[segments.values], segments.offsets)
    return RowBuffer(fields, taken, owners.take(segments.values, axis=0), used, block.counts)


def _scattered(columns: list[Any], edges: IntArray, numbers: IntArray) -> Array:
    """The rows with these numbers, all different, in their order.

    Copied a column at a time: each copy gives up the interpreter lock and waits for it again, which for each single row would
    take longer than the copy.
    """
    order = numbers.argsort()
    ascending = numbers[order]
    ends = ascending.searchsorted(edges).tolist()
    out = np.empty((len(numbers), *columns[0].shape[1:]), np.result_type(*columns))
    for column, edge, first, last in zip(columns, edges.tolist(), ends[:-1], ends[1:], strict=False):
        if last - first == len(column):
            out[order[first:last]] = column
        elif first < last:
            out[order[first:last]] = column[ascending[first:last] - edge]
    return out


def gather(block: Block | RowSlice) -> Gathered:
    """Copies a block's elements out of its parts.

    Raises:
        DataError: packed rows that do not all have the same fields.
    """
    if isinstance(block, RowSlice):
        return block.gather()
    places = list(zip(block.part.tolist(), block.row.tolist(), strict=True))
    if block.parts[0].starts is None:
        return Gathered(_documents(block, places), None, block.used(), _origins(block, places))
    fields: dict[str, Column] = {}
    names = set(block.parts[0].fields)
    for part in block.parts:
        if set(part.fields) != names:
            raise fields_differ(sorted(names ^ set(part.fields))[0], part)
    for name, column in block.parts[0].fields.items():
        assert isinstance(column, np.ndarray)
        kinds = {np.asarray(part.fields[name]).dtype for part in block.parts}
        out = np.empty((len(places), *column.shape[1:]), np.result_type(*kinds))
        for i, (number, row) in enumerate(places):
            out[i] = block.parts[number].fields[name][row]
        fields[name] = out
    origins = _origins(block, places)
    return Gathered(fields, origins.starts, block.used(), origins)


def _documents(block: Block, places: list[tuple[int, int]]) -> dict[str, Column]:
    """Columns of documents; numbers of one length as an array [rows, length], everything else as lists. Missing is None."""
    rows: list[dict[str, Any]] = []
    for number, row in places:
        part = block.parts[number]
        held = part.documents.records[row] if part.documents is not None and part.documents.records is not None else {}
        rows.append({**held, **{name: column[row] for name, column in part.fields.items()}})
    columns: dict[str, Column] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        same_shape = all(isinstance(v, np.ndarray) and v.ndim == 1 and v.shape == values[0].shape for v in values)  # type: ignore[union-attr]
        columns[name] = np.stack(values) if same_shape else values  # type: ignore[arg-type]
    return columns


def _origins(block: Block, places: list[tuple[int, int]]) -> Origins:
    """Of a block's elements; each document is one segment."""
    if block.parts[0].origins is None:
        return Origins(block.owners(), Ragged(np.zeros(len(places), np.int32), np.arange(len(places) + 1)))
    starts, owners = [], []
    for number, row in places:
        origins = block.parts[number].origins
        assert origins is not None
        starts.append(origins.starts[row])
        owners.append(origins.owners[origins.starts.offsets[row] : origins.starts.offsets[row + 1]])
    return Origins(np.concatenate(owners), Ragged.of(starts, np.int32))


def zero_weight(like: Mapping[str, Column] | None, rows: int, length: int) -> Gathered:
    """Rows of padding only, for a rank that runs more forwards than it owns sequences.

    Args:
        like: fields of a real batch, so that these rows have the same; None for tokens alone.
    """
    fields: dict[str, Column] = {"input_ids": np.zeros((rows, length), np.uint32)}
    for name, column in (like or {}).items():
        shaped = isinstance(column, np.ndarray)
        fields[name] = np.zeros((rows, *column.shape[1:]), column.dtype) if shaped else [None] * rows  # type: ignore[union-attr]
    starts = Ragged(np.zeros(rows, np.int32), np.arange(rows + 1))
    return Gathered(fields, starts, np.zeros(rows, np.int64), Origins(np.zeros((rows, 4), np.int64), starts))
