"""Documents that wait for their row, by reference, and the rows made of them.

Documents are numbered as they come, so a block holds a range of numbers; where a document's tokens lie is looked up for
all documents of a set of rows at once.
"""

from __future__ import annotations

import bisect
from typing import Any

import numpy as np

from zephon.errors import DataError
from zephon.ops.block import Block, Part, identity
from zephon.ops.packing.bins import Row
from zephon.ops.packing.stream import aligned_fields, make_rows
from zephon.ops.records import payloads
from zephon.types import Array, Column, IntArray, Ragged

_SHORT = 64  # tokens: shorter slices are gathered through one index, longer ones copied one by one


class _Held:
    """A block whose first document has this number; ``waiting`` of its documents have not left yet."""

    def __init__(self, first: int, block: Block, lengths: IntArray, waiting: int) -> None:
        self.first, self.block, self.lengths, self.waiting = first, block, lengths, waiting
        self.payloads: list[dict[str, Any]] | None = None


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
        pieces = np.array([piece for row in rows for piece in row], np.int64)
        sizes = np.array([len(row) for row in rows], np.int64)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        lengths = pieces[:, 2] - pieces[:, 1]
        ends = np.cumsum(lengths)
        row = np.repeat(np.arange(len(rows)), sizes)
        before = np.concatenate([np.zeros(1, np.int64), ends])[offsets[:-1]]
        starts = ends - lengths - before[row]
        used = ends[offsets[1:] - 1] - before
        to = row * self._length + starts
        sources = np.empty(len(pieces), np.int64)
        out: dict[str, Array] = {}
        for held, here in self._by_block(pieces[:, 0]):
            element = pieces[here, 0] - held.first
            sources[here] = held.block.datasets()[element]
            part, place = held.block.part[element], held.block.row[element]
            for number in np.unique(part).tolist():
                mine = part == number
                self._copy(held.block.parts[number], place[mine], pieces[here[mine]], to[here[mine]], out, len(rows))
            self._release(held, element, pieces[here, 2])
        fields = {name: flat.reshape(len(rows), self._length) for name, flat in out.items()}
        return make_rows(fields, starts, sources, offsets, used, self._datasets)

    def _copy(self, part: Part, place: IntArray, pieces: IntArray, to: IntArray, out: dict[str, Array], rows: int) -> None:
        """Copies slices of a part's documents to their places in the flat rows."""
        if self._names is None:
            self._names = aligned_fields(part)
        lengths = pieces[:, 2] - pieces[:, 1]
        for name in self._names:
            column = part.fields.get(name)
            if not isinstance(column, Ragged):
                raise fields_differ(name)
            if name not in out:
                filler = self._pad if name == "input_ids" else 0
                out[name] = np.full(rows * self._length, filler, column.values.dtype)
            flat, values = out[name], column.values
            begin = column.offsets[place] + pieces[:, 1]
            if lengths.sum() < _SHORT * len(lengths):
                within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
                flat[np.repeat(to, lengths) + within] = values[np.repeat(begin, lengths) + within]
                continue
            for target, source, length in zip(to.tolist(), begin.tolist(), lengths.tolist(), strict=True):
                flat[target : target + length] = values[source : source + length]

    def groups(self, rows: list[Row], *, whole: bool) -> Block | None:
        """The documents of each row as ``packed_samples``: a list of payloads, or with ``whole=False`` of tokens alone."""
        if not rows:
            return None
        counts = np.zeros((len(rows), self._datasets), np.int64)
        out: list[list[dict[str, Any]]] = []
        for number, row in enumerate(rows):
            samples = []
            for document, start, stop in row:
                held = self._held[bisect.bisect_right([held.first for held in self._held], document) - 1]
                element = document - held.first
                if held.payloads is None:
                    held.payloads = payloads(held.block)
                payload, part = held.payloads[element], held.block.parts[int(held.block.part[element])]
                tokens = isinstance(part.fields.get("input_ids"), Ragged)
                if tokens and (start, stop) != (0, int(held.lengths[element])):
                    aligned = aligned_fields(part)
                    payload = {name: value[start:stop] if name in aligned else value for name, value in payload.items()}
                samples.append(payload if whole else {"input_ids": payload["input_ids"]})
                dataset = int(part.datasets[int(held.block.row[element])])
                counts[number, dataset] += stop - start if tokens else 0
            out.append(samples)
        pieces = np.array([piece for row in rows for piece in row], np.int64)
        for held, here in self._by_block(pieces[:, 0]):
            self._release(held, pieces[here, 0] - held.first, pieces[here, 2])
        column: Column = out
        return identity(Part({"packed_samples": column}, np.full(len(rows), -1, np.int64)), counts)

    def _by_block(self, documents: IntArray) -> list[tuple[_Held, IntArray]]:
        """The blocks that some documents lie in, each with the indexes of those documents."""
        firsts = np.array([held.first for held in self._held], np.int64)
        block = np.searchsorted(firsts, documents, side="right") - 1
        return [(self._held[number], np.flatnonzero(block == number)) for number in np.unique(block).tolist()]

    def _release(self, held: _Held, element: IntArray, stop: IntArray) -> None:
        """A document has left when its last slice has, which is the last to leave."""
        held.waiting -= int(np.count_nonzero(stop == held.lengths[element]))
        if held.waiting == 0:
            self._held.remove(held)


def fields_differ(name: str) -> DataError:
    return DataError(
        f"some documents have a field {name!r} beside their tokens and others have not",
        follows="a row of both kinds would have no value for some tokens",
        remedy="give all documents the same fields, or keep kinds apart with homogeneity='full'",
    )
