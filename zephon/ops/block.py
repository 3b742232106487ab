"""A block: elements of one lane between accumulators, by reference.

Packing, shuffling and mixing decide *which* element comes where; no token has to move for that. A block is a list
of parts that hold the values and two integers per element that say where it lies; the values are gathered once, when a
batch is made:

    parts    [ rows of chunk 7 | rows of chunk 8 ]
    part       0  1  1  0  ...
    row        5  0  3  1  ...
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from zephon.types import Array, Column, Columns, IntArray, Json, Origins, Ragged, element


@dataclasses.dataclass(slots=True, eq=False)
class Part:
    """Values of elements that came into being together.

    Args:
        fields: columns by name; documents as they are, or packed rows as arrays [rows, max_length].
        datasets: int64, the dataset of each document; empty for packed rows.
        starts: for packed rows, where segments begin in each row (the first at 0); None for documents.
        used: for packed rows, int64[rows]: tokens before the padding.
        documents: the addresses of documents; None for packed rows.
        origins: for rows of several documents, which they are.
    """

    fields: dict[str, Column]
    datasets: IntArray
    starts: Ragged | None = None
    used: IntArray | None = None
    documents: Columns | None = None
    origins: Origins | None = None

    def __len__(self) -> int:
        if self.used is not None:
            return len(self.used)
        return len(self.datasets)

    def element(self, row: int) -> Json:
        """The fields of one element as a new dict."""
        return element(self.records, self.fields, row)

    @property
    def records(self) -> list[Json] | None:
        """The documents' records, where there are any."""
        return self.documents.records if self.documents is not None else None


@dataclasses.dataclass(slots=True, eq=False)
class Block:
    """n elements.

    Args:
        parts: where the values are.
        part, row: int64[n]: each element's part and its row there.
        counts: int64[n, datasets]: each element's tokens by dataset.
        entire: the elements are known to be all rows of all parts, in order.
    """

    parts: list[Part]
    part: IntArray
    row: IntArray
    counts: IntArray
    entire: bool = False

    def __len__(self) -> int:
        return len(self.row)

    def take(self, order: IntArray) -> Block:
        return Block(self.parts, self.part[order], self.row[order], self.counts[order])

    def part_of(self, first: int, last: int) -> Block:
        """Consecutive elements, without copying anything."""
        return Block(self.parts, self.part[first:last], self.row[first:last], self.counts[first:last])

    def compact(self) -> Block:
        """Without the parts that no element refers to any more, so that their values can be freed."""
        needed, part = np.unique(self.part, return_inverse=True)
        if len(needed) == len(self.parts):
            return self
        return Block([self.parts[i] for i in needed.tolist()], part.astype(np.int64), self.row, self.counts)

    @property
    def whole(self) -> Part | None:
        """The one part whose elements these are, all of them and in order; None otherwise."""
        if len(self.parts) == 1 and (self.entire or (len(self) == len(self.parts[0]) and _is_range(self.row))):
            return self.parts[0]
        return None

    def streams(self, name: str) -> list[Ragged]:
        """A ragged field in the block's order, as a column for each part where that saves copying."""
        if self.entire:
            return [part.fields[name] for part in self.parts]  # type: ignore[misc]
        return [self.ragged(name)]

    def ragged(self, name: str) -> Ragged:
        """A ragged field in the block's order."""
        whole = self.whole
        if whole is not None:
            column = whole.fields[name]
            assert isinstance(column, Ragged)
            return column
        rows: list[Array] = []
        for part, row in zip(self.part.tolist(), self.row.tolist(), strict=True):
            column = self.parts[part].fields[name]
            assert isinstance(column, Ragged)
            rows.append(column[row])
        return Ragged.of(rows, dtype=rows[0].dtype if rows else np.uint32)

    def datasets(self) -> IntArray:
        """int64[n]: the dataset of each document."""
        whole = self.whole
        if whole is not None:
            return whole.datasets
        if self.entire:
            return np.concatenate([part.datasets for part in self.parts])
        gathered = [self.parts[p].datasets[r] for p, r in zip(self.part.tolist(), self.row.tolist(), strict=True)]
        return np.array(gathered, np.int64)

    def owners(self) -> IntArray:
        """int64[n, 4], as in `Origins`: dataset, shard and row of each document, and 0; -1 of what is none."""
        owners = np.zeros((len(self), 4), np.int64)
        if not self.entire and self.whole is None:
            owners[:, 0], owners[:, 1], owners[:, 2] = addresses_of(self, np.arange(len(self)))
            return owners
        at = 0
        for part in self.parts:
            here = owners[at : at + len(part)]
            if part.documents is None:
                here[:, :3] = -1
            else:
                here[:, 0], here[:, 1], here[:, 2] = part.datasets, part.documents.shard, part.documents.row
            at += len(part)
        return owners

    def tokens(self) -> list[int]:
        """Tokens of all elements together, by dataset."""
        return np.add.reduce(self.counts, axis=0).tolist()  # type: ignore[no-any-return]

    def used(self) -> IntArray:
        """int64[n]: tokens of each element."""
        used: IntArray = self.counts[:, 0] if self.counts.shape[1] == 1 else self.counts.sum(axis=1)
        return used


def _is_range(row: IntArray) -> bool:
    return len(row) == 0 or bool(row[0] == 0 and row[-1] == len(row) - 1 and (row[1:] > row[:-1]).all())


def identity(part: Part, counts: IntArray) -> Block:
    """All elements of a part, in order."""
    n = len(part)
    return Block([part], np.zeros(n, np.int64), np.arange(n), counts, entire=True)


def of_documents(columns: Columns, datasets: int) -> Block:
    """The documents of a chunk as a block.

    Counts are the lengths of ``input_ids`` where there are any; of padded documents, the ones of ``attention_mask``.
    """
    n = len(columns)
    counts = np.zeros((n, datasets), np.int64)
    ids, mask = columns.fields.get("input_ids"), columns.fields.get("attention_mask")
    if isinstance(mask, Ragged):
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(mask.values, dtype=np.int64)])
        lengths = ends[mask.offsets[1:]] - ends[mask.offsets[:-1]]
    elif isinstance(ids, Ragged):
        lengths = ids.lengths()
    else:
        lengths = np.zeros(n, np.int64)
    if columns.sources is None:
        sources = np.empty(n, np.int64)
        sources.fill(columns.dataset)
        counts[:, columns.dataset] = lengths
    else:
        sources = columns.sources
        counts[np.arange(n), sources] = lengths
    return identity(Part(dict(columns.fields), sources, documents=columns), counts)


def concatenate(blocks: list[Block]) -> Block:
    """One block of several; values stay where they are."""
    if len(blocks) == 1:
        return blocks[0]
    parts: list[Part] = []
    part: list[IntArray] = []
    for block in blocks:
        part.append(block.part + len(parts))
        parts += block.parts
    return Block(
        parts,
        np.concatenate(part),
        np.concatenate([block.row for block in blocks]),
        np.concatenate([block.counts for block in blocks]),
        all(block.entire for block in blocks),
    )


def concatenate_filled(blocks: Iterable[Block | None]) -> Block | None:
    """What several accumulators or groups have emitted, concatenated; None when that is nothing."""
    filled = [block for block in blocks if block is not None and len(block)]
    return concatenate(filled) if filled else None


def addresses_of(block: Block, rows: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """int64 arrays (dataset, shard, row) of some of a block's documents; (-1, -1, -1) for packed rows."""
    addresses = np.full((3, len(rows)), -1, np.int64)
    parts, places = block.part[rows], block.row[rows]
    for number in np.unique(parts).tolist():
        documents = block.parts[number].documents
        if documents is not None:
            here = np.flatnonzero(parts == number)
            addresses[0, here] = block.parts[number].datasets[places[here]]
            addresses[1, here], addresses[2, here] = documents.shard[places[here]], documents.row[places[here]]
    return addresses[0], addresses[1], addresses[2]
