"""Documents that wait for their row, by reference, and the rows made of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from zephon.errors import DataError
from zephon.ops.block import Block, Part, identity
from zephon.ops.packing.bins import Piece, Row
from zephon.ops.packing.stream import aligned_fields, make_rows
from zephon.ops.records import payloads
from zephon.types import Array, Column, Ragged


class _Held:
    """A block with its places as Python lists, and how many of its documents still wait."""

    def __init__(self, block: Block, waiting: int) -> None:
        self.block, self.waiting = block, waiting
        self.part, self.row = block.part.tolist(), block.row.tolist()
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
        self._held: dict[int, _Held] = {}
        self._next = 0
        self._names: list[str] | None = None

    def hold(self, block: Block, waiting: int) -> int:
        """Takes a block of which so many documents will be used; returns its key."""
        key, self._next = self._next, self._next + 1
        self._held[key] = _Held(block, waiting)
        return key

    def rows(self, rows: list[Row]) -> Block | None:
        """Packed rows, padded at the end."""
        if not rows:
            return None
        names = self._fields(rows)
        out = {name: self._empty(rows[0][0], name, len(rows)) for name in names}
        starts: list[int] = []
        sources: list[int] = []
        used = np.zeros(len(rows), np.int64)
        for number, row in enumerate(rows):
            at = 0
            for piece in row:
                part, place = self._place(piece)
                starts.append(at)
                sources.append(part.datasets[place])
                for name in names:
                    column: Ragged = part.fields[name]  # type: ignore[assignment]
                    begin = column.offsets[place]
                    out[name][number, at : at + piece.length] = column.values[begin + piece.start : begin + piece.stop]
                at += piece.length
            used[number] = at
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        self._release(rows)
        return make_rows(out, np.array(starts, np.int64), np.array(sources, np.int64), offsets, used, self._datasets)

    def groups(self, rows: list[Row], *, whole: bool) -> Block | None:
        """The documents of each row as ``packed_samples``: a list of payloads, or with ``whole=False`` of tokens alone."""
        if not rows:
            return None
        counts = np.zeros((len(rows), self._datasets), np.int64)
        out: list[list[dict[str, Any]]] = []
        for number, row in enumerate(rows):
            samples = []
            for piece in row:
                held = self._held[piece.key]
                part, place = self._place(piece)
                if held.payloads is None:
                    held.payloads = payloads(held.block)
                ids = part.fields.get("input_ids")
                size = int(ids.offsets[place + 1] - ids.offsets[place]) if isinstance(ids, Ragged) else 0
                payload = held.payloads[piece.element]
                if isinstance(ids, Ragged) and (piece.start, piece.stop) != (0, size):
                    aligned = aligned_fields(held.block)
                    payload = {k: v[piece.start : piece.stop] if k in aligned else v for k, v in payload.items()}
                samples.append(payload if whole else {"input_ids": payload["input_ids"]})
                counts[number, part.datasets[place]] += piece.length if isinstance(ids, Ragged) else 0
            out.append(samples)
        self._release(rows)
        column: Column = out
        return identity(Part({"packed_samples": column}, np.full(len(rows), -1, np.int64)), counts)

    def _place(self, piece: Piece) -> tuple[Part, int]:
        held = self._held[piece.key]
        return held.block.parts[held.part[piece.element]], held.row[piece.element]

    def _empty(self, first: Piece, name: str, rows: int) -> Array:
        column = self._place(first)[0].fields[name]
        assert isinstance(column, Ragged)
        return np.full((rows, self._length), self._pad if name == "input_ids" else 0, column.values.dtype)

    def _fields(self, rows: list[Row]) -> list[str]:
        if self._names is None:
            self._names = aligned_fields(self._held[rows[0][0].key].block)
        for row in rows:
            for piece in row:
                missing = [name for name in self._names if name not in self._place(piece)[0].fields]
                if missing:
                    raise fields_differ(missing[0])
        return self._names

    def _release(self, rows: list[Row]) -> None:
        for row in rows:
            for piece in row:
                held = self._held.get(piece.key)
                if held is None:
                    continue
                held.waiting -= self._ends(held, piece)
                if held.waiting <= 0:
                    del self._held[piece.key]

    def _ends(self, held: _Held, piece: Piece) -> int:
        """1 when this piece is the end of its document. A document's last piece is the last to leave."""
        ids = held.block.parts[held.part[piece.element]].fields.get("input_ids")
        if not isinstance(ids, Ragged):
            return 1
        place = held.row[piece.element]
        return int((piece.start == 0 and piece.length == 0) or piece.stop >= ids.offsets[place + 1] - ids.offsets[place])


def fields_differ(name: str) -> DataError:
    return DataError(
        f"some documents have a field {name!r} beside their tokens and others have not",
        follows="a row of both kinds would have no value for some tokens",
        remedy="give all documents the same fields, or keep kinds apart with homogeneity='full'",
    )
