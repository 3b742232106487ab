"""A stream of tokens with its document boundaries, and the rows cut from it."""

from __future__ import annotations

import dataclasses

import numpy as np

from zephon.ops.block import Block, Part, identity
from zephon.types import Array, IntArray, Ragged


def aligned_fields(part: Part) -> list[str]:
    """Fields with one value a token: ``input_ids`` and all ragged fields of the same lengths. Others cannot be packed."""
    ids = part.fields["input_ids"]
    assert isinstance(ids, Ragged)
    same = [
        name
        for name, column in part.fields.items()
        if isinstance(column, Ragged) and name != "input_ids" and np.array_equal(column.offsets, ids.offsets)
    ]
    return ["input_ids", *sorted(same)]


@dataclasses.dataclass(slots=True, eq=False)
class Stream:
    """Tokens laid end to end.

    Args:
        values: per field, one value a token.
        starts: int64, where documents begin; the first is 0 unless the stream is empty.
        sources: int64, the dataset of each of them.
    """

    values: dict[str, Array]
    starts: IntArray
    sources: IntArray

    @staticmethod
    def empty() -> Stream:
        return Stream({}, np.empty(0, np.int64), np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.values["input_ids"]) if self.values else 0

    def append(self, block: Block) -> int:
        """Puts the documents of a block behind; returns how many tokens they are."""
        if len(block) == 0:
            return 0
        names = aligned_fields(block.parts[0]) if not self.values else list(self.values)
        columns = {name: block.ragged(name) for name in names}
        offsets = columns["input_ids"].offsets
        filled = np.diff(offsets) > 0
        shift = len(self)
        self.starts = np.concatenate([self.starts, offsets[:-1][filled] + shift])
        self.sources = np.concatenate([self.sources, block.datasets()[filled]])
        if shift:
            self.values = {name: np.concatenate([self.values[name], columns[name].values]) for name in names}
        else:
            self.values = {name: columns[name].values for name in names}
        return int(offsets[-1])

    def split(self, at: int) -> tuple[Stream, Stream]:
        """The first ``at`` tokens and the rest. A document that is cut begins anew in the rest."""
        first = int(np.searchsorted(self.starts, at))
        head = Stream({n: v[:at] for n, v in self.values.items()}, self.starts[:first], self.sources[:first])
        starts, sources = self.starts[first:] - at, self.sources[first:]
        if at < len(self) and (len(starts) == 0 or starts[0] != 0):
            starts = np.concatenate([np.zeros(1, np.int64), starts])
            sources = np.concatenate([self.sources[first - 1 : first], sources])
        # Copied, so that a short tail does not keep its whole chunk in memory.
        return head, Stream({n: v[at:].copy() for n, v in self.values.items()}, starts, sources)

    def pour(self, block: Block, length: int, datasets: int) -> tuple[Block | None, int]:
        """Puts the documents of a block behind and takes out all full rows of ``length``.

        A row that begins in one piece of the block and ends in another is copied together; all others are views.

        Returns:
            (rows or None, tokens of the block).
        """
        columns = {name: block.streams(name) for name in (list(self.values) or aligned_fields(block.parts[0]))}
        offsets = Ragged.joined_offsets(columns["input_ids"])
        held, total = len(self), int(offsets[-1])
        n = (held + total) // length
        if n == 0:
            return None, self.append(block)
        begins, sources = offsets[:-1], block.datasets()
        filled = offsets[1:] > begins
        if not filled.all():
            begins, sources = begins[filled], sources[filled]
        starts = np.concatenate([self.starts, begins + held])
        sources = np.concatenate([self.sources, sources])
        groups = self._groups(columns, length)
        cut = int(starts.searchsorted(n * length))
        rows = cut_rows(groups, starts[:cut], sources[:cut], n, length, datasets)
        rest_starts, rest_sources = starts[cut:] - n * length, sources[cut:]
        if len(self) and (len(rest_starts) == 0 or rest_starts[0] != 0):
            rest_starts = np.concatenate([np.zeros(1, np.int64), rest_starts])
            rest_sources = np.concatenate([sources[cut - 1 : cut], rest_sources])
        self.starts, self.sources = rest_starts, rest_sources
        return rows, total

    def _groups(self, columns: dict[str, list[Ragged]], length: int) -> list[dict[str, Array]]:
        """Full rows as groups of arrays [rows, length]; what is left of the values stays here."""
        groups: list[dict[str, Array]] = []
        for pieces in zip(*columns.values(), strict=True):
            values = {name: piece.values for name, piece in zip(columns, pieces, strict=True)}
            held, total = len(self), len(values["input_ids"])
            if held + total < length:
                self.values = {k: np.concatenate([self.values[k], v]) if held else v.copy() for k, v in values.items()}
                continue
            begun = length - held if held else 0
            end = begun + (total - begun) // length * length
            if begun:
                groups.append({k: np.concatenate([self.values[k], v[:begun]]).reshape(1, length) for k, v in values.items()})
            if end > begun:
                groups.append({k: v[begun:end].reshape(-1, length) for k, v in values.items()})
            # Copied, so that a short tail does not keep its whole chunk in memory.
            self.values = {k: v[end:].copy() for k, v in values.items()}
        return groups


def cut_rows(groups: list[dict[str, Array]], starts: IntArray, sources: IntArray, n: int, length: int, datasets: int) -> Block:
    """Full rows as a block, a part for each group of arrays [rows, length].

    Args:
        groups: fields of consecutive rows; n rows altogether.
        starts, sources: of the documents, counted in tokens over all rows; the first starts at 0.
    """
    edges = np.arange(0, (n + 1) * length, length)
    begins = np.concatenate([starts, edges[:-1]])
    begins.sort()
    fresh = np.empty(len(begins), bool)
    fresh[0] = True
    np.not_equal(begins[1:], begins[:-1], out=fresh[1:])
    begins = begins[fresh]
    offsets = begins.searchsorted(edges)
    counts = np.zeros((n, datasets), np.int64)
    if datasets == 1 or (sources == sources[0]).all():
        owner = np.empty(len(begins), np.int64)
        owner.fill(sources[0])
        counts[:, sources[0]] = length
    else:
        owner = sources[starts.searchsorted(begins, side="right") - 1]
        np.add.at(counts, (begins // length, owner), np.append(begins[1:], n * length) - begins)
    inner, used = (begins % length).astype(np.int32), np.empty(n, np.int64)
    used.fill(length)
    parts: list[Part] = []
    places, within, at = np.empty(n, np.int64), np.empty(n, np.int64), 0
    for fields in groups:
        size = len(fields["input_ids"])
        first, last = int(offsets[at]), int(offsets[at + size])
        ragged = Ragged(inner[first:last], offsets[at : at + size + 1] - first)
        places[at : at + size], within[at : at + size] = len(parts), np.arange(size)
        parts.append(Part(dict(fields), owner[first:last], ragged, used[at : at + size]))
        at += size
    return Block(parts, places, within, counts)


def make_rows(
    fields: dict[str, Array], starts: IntArray, sources: IntArray, offsets: IntArray, used: IntArray, datasets: int
) -> Block:
    """Packed rows as a block.

    Args:
        fields: arrays [rows, length].
        starts, sources: of all segments, row by row; starts are relative to their row.
        offsets: int64[rows + 1], the segments of each row.
        used: int64[rows], tokens before the padding.
        datasets: how many datasets the source has.
    """
    n = len(used)
    ends = np.append(starts[1:], 0)
    ends[offsets[1:] - 1] = used
    row = np.repeat(np.arange(n), np.diff(offsets))
    counts = np.bincount(row * datasets + sources, weights=ends - starts, minlength=n * datasets)
    part = Part(dict(fields), sources, Ragged(starts.astype(np.int32), offsets), used)
    return identity(part, counts.astype(np.int64).reshape(n, datasets))
