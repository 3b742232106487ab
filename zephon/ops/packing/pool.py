"""Documents that wait for their row, by reference, and the rows made of them.

Documents are numbered as they come, so a block holds a range of numbers; where a document's tokens lie is looked up for
all documents of a set of rows at once.
"""

from __future__ import annotations

import bisect
import functools
from typing import NamedTuple

import numpy as np

from zephon.ops.block import Block, Part, identity
from zephon.ops.packing.bins import Row, Slice
from zephon.ops.packing.stream import aligned_fields, make_rows, same_fields
from zephon.ops.records import payloads
from zephon.types import Array, IntArray, Json, Origins, Ragged

_SHORT = 64  # tokens: shorter slices are gathered through one index, longer ones copied one by one


class _Held:
    """A block whose first document has this number; ``waiting`` of its documents have not left yet."""

    def __init__(self, first: int, block: Block, lengths: IntArray, waiting: int) -> None:
        self.first, self.block, self.lengths, self.waiting = first, block, lengths, waiting
        self._payloads: list[Json] | None = None
        self.fields: list[str] | None = None  # that are packed, once its first row is made

    def payload(self, element: int) -> Json:
        """One document as a dict; all of a block are made at once, and when the first is asked for."""
        if self._payloads is None:
            self._payloads = payloads(self.block)
        return self._payloads[element]

    @functools.cached_property
    def owners(self) -> IntArray:
        """int64[n, 4], as in `Origins`."""
        return self.block.owners()


class _Layout(NamedTuple):
    """Slices of documents in their rows, row by row; all int64.

    Args:
        documents, begins, ends: [slices], a document's number and which of its tokens the slice is.
        rows, starts: [slices], the slice's row, and where in it the slice starts.
        offsets: [rows + 1], the slices of each row.
        used: [rows], tokens of each row.
    """

    documents: IntArray
    begins: IntArray
    ends: IntArray
    rows: IntArray
    starts: IntArray
    offsets: IntArray
    used: IntArray

    @staticmethod
    def of(rows: list[Row]) -> _Layout:
        slices = np.array([part for row in rows for part in row], np.int64)
        documents, begins, ends = slices[:, 0], slices[:, 1], slices[:, 2]
        counts = np.array([len(row) for row in rows], np.int64)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        row_of = np.repeat(np.arange(len(rows)), counts)
        # Where slices begin when all rows are laid end to end without padding, and where all of them end.
        laid = np.concatenate([np.zeros(1, np.int64), np.cumsum(ends - begins)])
        row_starts = laid[offsets[:-1]]
        return _Layout(documents, begins, ends, row_of, laid[:-1] - row_starts[row_of], offsets, laid[offsets[1:]] - row_starts)


class Pool:
    """Keeps a block until the last of its documents has left.

    Args:
        length: tokens of a row.
        pad: what token ids are padded with; other fields are padded with 0.
        datasets: how many datasets the source has.
    """

    def __init__(self, length: int, pad: int, datasets: int) -> None:
        self._length, self._pad, self._datasets = length, pad, datasets
        self._held: list[_Held] = []
        self._next = 0
        self._names: list[str] | None = None

    def __len__(self) -> int:
        """Blocks that are held."""
        return len(self._held)

    def hold(self, block: Block, lengths: IntArray) -> int:
        """Takes a block; returns the number of its first document. Documents without a token never leave."""
        first, self._next = self._next, self._next + len(block)
        waiting = int(np.count_nonzero(lengths))
        if waiting:
            self._held.append(_Held(first, block, lengths, waiting))
        return first

    def rows(self, rows: list[Row]) -> Block | None:
        """Packed rows, padded at the end."""
        if not rows:
            return None
        layout = _Layout.of(rows)
        targets = layout.rows * self._length + layout.starts  # in the flat rows
        owners = np.empty((len(targets), 4), np.int64)
        flat: dict[str, Array] = {}
        for held, chosen in self._by_block(layout.documents):
            elements = layout.documents[chosen] - held.first
            if held.fields is None:
                self._names = held.fields = same_fields(self._names or aligned_fields(held.block.parts[0]), held.block.parts)
            owners[chosen] = held.owners[elements]
            part_of, place = held.block.part[elements], held.block.row[elements]
            for number in np.unique(part_of).tolist():
                inside = part_of == number
                slices = chosen[inside]
                begins, lengths = layout.begins[slices], layout.ends[slices] - layout.begins[slices]
                self._copy(held.block.parts[number], place[inside], begins, lengths, targets[slices], flat, len(rows))
            self._release(held, elements, layout.ends[chosen])
        fields = {name: values.reshape(len(rows), self._length) for name, values in flat.items()}
        owners[:, 3] = layout.begins
        return make_rows(fields, layout.starts, owners, layout.offsets, layout.used, self._datasets)

    def _copy(
        self,
        part: Part,
        documents: IntArray,
        begins: IntArray,
        lengths: IntArray,
        targets: IntArray,
        flat: dict[str, Array],
        rows: int,
    ) -> None:
        """Copies slices of a part's documents to their places in the flat rows, which are made at the first copy."""
        for name in self._names or ():
            column = part.fields[name]
            assert isinstance(column, Ragged)
            if name not in flat:
                flat[name] = np.full(rows * self._length, self._pad if name == "input_ids" else 0, column.values.dtype)
            elif flat[name].dtype != column.values.dtype:  # masks in some documents, weights in others
                flat[name] = flat[name].astype(np.promote_types(flat[name].dtype, column.values.dtype), copy=False)
            _copy_slices(column.values, column.offsets[documents] + begins, lengths, flat[name], targets)

    def groups(self, rows: list[Row], *, whole: bool) -> Block | None:
        """The documents of each row as ``packed_samples``: a list of payloads, or with ``whole=False`` of tokens alone."""
        if not rows:
            return None
        counts = np.zeros((len(rows), self._datasets), np.int64)
        groups: list[list[Json]] = []
        for number, row in enumerate(rows):
            groups.append([])
            for part in row:
                payload, dataset, tokens = self._sample(part)
                groups[-1].append(payload if whole else {"input_ids": payload["input_ids"]})
                counts[number, dataset] += tokens
        layout = _Layout.of(rows)
        owners = np.empty((len(layout.documents), 4), np.int64)
        for held, chosen in self._by_block(layout.documents):
            elements = layout.documents[chosen] - held.first
            owners[chosen] = held.owners[elements]
            self._release(held, elements, layout.ends[chosen])
        owners[:, 3] = layout.begins
        origins = Origins(owners, Ragged(layout.starts, layout.offsets))
        return identity(Part({"packed_samples": groups}, np.full(len(rows), -1, np.int64), origins=origins), counts)

    def _sample(self, part: Slice) -> tuple[Json, int, int]:
        """A slice of a document as (payload, its dataset, how many tokens)."""
        document, begin, end = part
        held = self._held[bisect.bisect_right(self._held, document, key=lambda block: block.first) - 1]
        element = document - held.first
        payload, values = held.payload(element), held.block.parts[int(held.block.part[element])]
        dataset = int(values.datasets[int(held.block.row[element])])
        if not isinstance(values.fields.get("input_ids"), Ragged):
            return payload, dataset, 0
        if (begin, end) != (0, int(held.lengths[element])):
            aligned = aligned_fields(values)
            payload = {name: value[begin:end] if name in aligned else value for name, value in payload.items()}
        return payload, dataset, end - begin

    def _by_block(self, documents: IntArray) -> list[tuple[_Held, IntArray]]:
        """The blocks that some documents lie in, each with the indexes of those documents."""
        firsts = np.array([held.first for held in self._held], np.int64)
        block = np.searchsorted(firsts, documents, side="right") - 1
        return [(self._held[number], np.flatnonzero(block == number)) for number in np.unique(block).tolist()]

    def _release(self, held: _Held, elements: IntArray, ends: IntArray) -> None:
        """A document has left when its last slice has, which is the last to leave."""
        held.waiting -= int(np.count_nonzero(ends == held.lengths[elements]))
        if held.waiting == 0:
            self._held.remove(held)


def _copy_slices(values: Array, begins: IntArray, lengths: IntArray, out: Array, targets: IntArray) -> None:
    """``out[t : t + n] = values[b : b + n]`` for each target t, begin b and length n."""
    total = lengths.sum()
    if total < _SHORT * len(lengths):
        within = np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        out[np.repeat(targets, lengths) + within] = values[np.repeat(begins, lengths) + within]
        return
    for target, begin, length in zip(targets.tolist(), begins.tolist(), lengths.tolist(), strict=True):
        out[target : target + length] = values[begin : begin + length]
