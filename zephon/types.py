"""The loader's vocabulary: what travels from the plan to the accumulators.

Chunk      what to read: ranges of shards of one dataset            (from the plan)
Columns    the documents of one chunk, a column per field            (reader and stages)
Ragged     a column of variable-length rows: flat values and offsets (token ids and all that is aligned with them)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zephon.fastjson import Json as Json

IntArray = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

Payload = dict[str, Any]
"""The fields of one document or packed row, as user code sees them."""


class Address(NamedTuple):
    """Where a document is: dataset name, shard name, row (a JSONL row is named by its byte offset)."""

    dataset: str
    shard: str
    row: int

    def __str__(self) -> str:
        return f"dataset {self.dataset!r}, shard {self.shard!r}, row {self.row}"


class ByteAddress(Address):
    """The same where ``row`` is the byte at which the document begins in the shard's text, as in JSONL."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"dataset {self.dataset!r}, shard {self.shard!r}, byte {self.row}"


@dataclasses.dataclass(frozen=True, slots=True)
class DocumentSpan:
    """Which tokens of a row are of which document.

    Args:
        address: the document's.
        start, stop: the tokens of the row, half-open.
        offset: tokens of the document that come before these, in rows before.
    """

    address: Address
    start: int
    stop: int
    offset: int = 0

    @property
    def dataset(self) -> str:
        return self.address.dataset

    @property
    def shard(self) -> str:
        return self.address.shard

    @property
    def row(self) -> int:
        return self.address.row

    def __str__(self) -> str:
        later = f", from its token {self.offset:,} on" if self.offset else ""
        return f"tokens {self.start:,} to {self.stop:,}: {self.address}{later}"


class ShardRange(NamedTuple):
    """A half-open range of one shard, in the shard's units (bytes of content, or rows)."""

    shard: int
    start: int
    stop: int


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """The unit of planning and reading.

    Args:
        dataset: index of the dataset in its source.
        epoch: which pass over the dataset this is, from 0.
        index: which chunk of the dataset.
        ranges: what to read, in order.
        order_key: key of the permutation of the documents inside the chunk; None keeps them in order.
    """

    dataset: int
    epoch: int
    index: int
    ranges: tuple[ShardRange, ...]
    order_key: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of different lengths: row i is ``values[offsets[i]:offsets[i + 1]]``; offsets is int64[n + 1] from 0."""

    values: Array
    offsets: IntArray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Array:
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def lengths(self) -> IntArray:
        lengths: IntArray = self.offsets[1:] - self.offsets[:-1]
        return lengths

    def take(self, rows: IntArray) -> Ragged:
        """The given rows in the given order, copied."""
        places = self.places(rows)
        return Ragged(self.values[places.values], places.offsets)

    def places(self, rows: IntArray) -> Ragged:
        """Where in ``values`` the values of the given rows lie."""
        lengths = self.lengths()[rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return Ragged(np.repeat(self.offsets[:-1][rows] - offsets[:-1], lengths) + np.arange(offsets[-1]), offsets)

    @staticmethod
    def joined(columns: Sequence[Ragged]) -> Ragged:
        """Columns concatenated; a single one as it is."""
        if len(columns) == 1:
            return columns[0]
        return Ragged(np.concatenate([column.values for column in columns]), Ragged.joined_offsets(columns))

    @staticmethod
    def joined_offsets(columns: Sequence[Ragged]) -> IntArray:
        """The offsets that `joined` would have, without touching the values."""
        if len(columns) == 1:
            return columns[0].offsets
        offsets, shift = [np.zeros(1, np.int64)], 0
        for column in columns:
            offsets.append(column.offsets[1:] + shift)
            shift += int(column.offsets[-1])
        return np.concatenate(offsets)

    @staticmethod
    def of(rows: Sequence[Array], dtype: npt.DTypeLike = np.uint32) -> Ragged:
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        values = np.concatenate(rows).astype(dtype, copy=False) if rows else np.empty(0, dtype)
        return Ragged(values, offsets)


Column = list[Any] | Ragged | Array


class Origins(NamedTuple):
    """Which documents rows are made of, in numbers.

    Args:
        owners: int64[segments, 4]: a document's dataset, shard and row, and its tokens in rows before.
        starts: where segments begin in each row.
    """

    owners: IntArray
    starts: Ragged

    def spans(self, used: Sequence[int], address: Callable[[int, int, int], Address]) -> list[list[DocumentSpan]]:
        """The documents of each row, in order.

        Args:
            used: tokens of the first rows.
            address: of the document with these numbers of dataset and shard, and this row.
        """
        owners, starts, offsets = self.owners.tolist(), self.starts.values.tolist(), self.starts.offsets.tolist()
        if len(used) > len(self.starts):
            raise ValueError(f"map_batch has made {len(used)} rows of {len(self.starts)}, so that nobody knows whose they are")
        spans: list[list[DocumentSpan]] = []
        for tokens, first, last in zip(used, offsets, offsets[1:], strict=False):
            ends = [*starts[first + 1 : last], tokens]
            spans.append(
                [
                    DocumentSpan(address(*owner[:3]), start, stop, owner[3])
                    for owner, start, stop in zip(owners[first:last], starts[first:last], ends, strict=True)
                    if owner[0] >= 0
                ]
            )
        return spans


class Sampled(NamedTuple):
    """What a sample of a dataset's documents holds.

    Args:
        tokens: of these documents, after the stages.
        size: what they take in their shards, in the format's units.
        error: standard error of tokens / size, in millionths of it.
        documents: how many there are before any stage; 0 where they were not counted.
    """

    tokens: int
    size: int
    error: int = 0
    documents: int = 0

    @property
    def document_size(self) -> float:
        """Of a document in the mean, in the format's units; 0 where they were not counted."""
        return self.size / self.documents if self.documents else 0.0


Counts = Mapping[str, Sampled]
"""Datasets by name."""


class TokenColumns(NamedTuple):
    """Which fields of a dataset's documents have one number a token: decided once for a stream, by its first document.

    Args:
        aligned: those fields, beside the token ids themselves.
        others: fields of the documents that were looked at which are something else, also where one happens to be as long.
        first: the address of that document.
    """

    aligned: tuple[str, ...]
    others: frozenset[str]
    first: str


TOKEN_FIELDS = ("input_ids", "tokens", "token_ids", "ids")
"""Where stored token ids are looked for, in this order."""

ALIGNED_FIELDS = ("loss_mask", "labels")
"""Stored beside token ids with one number a token, in every document of a stream or in none."""

IGNORE_INDEX = -100
"""The label of a token that is not trained, PyTorch's own default."""


def take(column: Column, rows: IntArray) -> Column:
    """Rows of a column, in the given order."""
    if isinstance(column, list):
        return [column[i] for i in rows.tolist()]
    if isinstance(column, Ragged):
        return column.take(rows)
    return column[rows]


def element(records: Sequence[Json] | None, fields: Mapping[str, Column], i: int) -> Json:
    """The fields of one document or row as a new dict; a column wins over a record's field of the same name."""
    whole = dict(records[i]) if records is not None else {}
    for name, column in fields.items():
        whole[name] = column[i]
    return whole


class Dropped(NamedTuple):
    """Documents that were dropped for one reason: int64 arrays of their addresses, and their tokens where they had any."""

    reason: str
    dataset: IntArray
    shard: IntArray
    row: IntArray
    tokens: int = 0

    def __len__(self) -> int:
        return len(self.row)


@dataclasses.dataclass(frozen=True, slots=True)
class DropSummary:
    """An entry of `SampleBatch.dropped`: how many documents were dropped, why, and where the first of them are.

    Args:
        reason: op and rule, such as "map_transform: None" or "pack_flat: longer than max_length".
        count: documents.
        addresses: the first eight of them.
        tokens: of all of them, where they were tokenized already.
    """

    reason: str
    count: int
    addresses: tuple[Address, ...]
    tokens: int = 0


ADDRESSES = 8  # of documents dropped for one reason in one step, as many as a batch names


def sum_by_reason(parts: Iterable[DropSummary]) -> tuple[DropSummary, ...]:
    """One entry for each reason, in order of reasons: counts added, the first eight addresses kept."""
    sums: dict[str, DropSummary] = {}
    for part in parts:
        before = sums.get(part.reason, DropSummary(part.reason, 0, ()))
        addresses = (*before.addresses, *part.addresses)[:ADDRESSES]
        sums[part.reason] = DropSummary(part.reason, before.count + part.count, addresses, before.tokens + part.tokens)
    return tuple(sums[reason] for reason in sorted(sums))


@dataclasses.dataclass(slots=True)
class Columns:
    """The documents of one chunk.

    A field is a column in ``fields``, or still inside ``records``, the decoded dicts. A stage takes it out when it needs it,
    so that columns which no stage reads cost nothing.

    Args:
        dataset: index of the dataset.
        shard, row: int64[n], each document's address.
        records: one dict per document, or None when the format delivers columns.
        fields: columns by name; they win over a record's field of the same name.
        sources: int64[n], each document's dataset, where an op gathers documents of several; else None.
        dropped: documents that stages dropped, and why.
        quarantined: (range of the chunk, row) of documents that failed and were set aside, see `zephon.ops.quarantine`.
    """

    dataset: int
    shard: IntArray
    row: IntArray
    records: list[Json] | None
    fields: dict[str, Column] = dataclasses.field(default_factory=dict)
    sources: IntArray | None = None
    dropped: list[Dropped] = dataclasses.field(default_factory=list)
    quarantined: list[tuple[int, int]] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.row)

    def source(self, i: int) -> int:
        """The dataset of document i."""
        return self.dataset if self.sources is None else int(self.sources[i])

    def document(self, i: int) -> Json:
        """One document as a new dict."""
        return element(self.records, self.fields, i)

    def dicts(self) -> Iterator[Json]:
        """Each document as one new dict."""
        return map(self.document, range(len(self)))

    def take(self, rows: IntArray) -> Columns:
        return Columns(
            self.dataset,
            self.shard[rows],
            self.row[rows],
            None if self.records is None else [self.records[i] for i in rows.tolist()],
            {name: take(column, rows) for name, column in self.fields.items()},
            None if self.sources is None else self.sources[rows],
            list(self.dropped),
            list(self.quarantined),
        )

    def keep(self, rows: IntArray, reason: str) -> Columns:
        """The given rows (ascending); the others are noted as dropped for this reason."""
        if len(rows) == len(self):
            return self
        kept = self.take(rows)
        dropped = np.setdiff1d(np.arange(len(self)), rows)
        sources = np.full(len(dropped), self.dataset) if self.sources is None else self.sources[dropped]
        kept.dropped.append(Dropped(reason, sources, self.shard[dropped], self.row[dropped]))
        return kept


Stage = Callable[[Columns], Columns]
