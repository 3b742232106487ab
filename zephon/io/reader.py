"""The reader: a chunk of the plan becomes the columns of its documents."""

from __future__ import annotations

import numpy as np

from zephon.errors import DataError, NotFound, ZephonError
from zephon.io.cache import CachedFiles
from zephon.io.dataset import Dataset
from zephon.io.decoded import forget_decoded
from zephon.io.formats.base import Documents
from zephon.io.watch import noted
from zephon.seeds import permutation
from zephon.types import Chunk, Column, Columns, Json, Ragged


def read(dataset: Dataset, chunk: Chunk, bad: list[DataError] | None = None, sizes: list[int] | None = None) -> Columns:
    """Reads all ranges of a chunk, in the plan's order of documents.

    Args:
        bad: takes the errors about single documents; without it the first of them is raised.
        sizes: takes what the documents of each range take, in the format's units, see `Documents`.

    Raises:
        DataError: a document or shard cannot be used; a note names the address.
    """
    shards: list[int] = []
    rows: list[int] = []
    records: list[Json] | None = None
    parts: list[dict[str, Column]] = []
    for shard, start, stop in chunk.ranges:
        try:
            documents = _documents(dataset, shard, start, stop)
        except Exception as error:
            error.add_note(f"while reading dataset {dataset.name!r}, shard {dataset.shards[shard]!r}, {start} to {stop}")
            raise
        if documents.bad:
            if bad is None:
                raise documents.bad[0]
            bad += documents.bad
        if sizes is not None:
            sizes.append(documents.size)
        rows += documents.rows
        shards += [shard] * len(documents.rows)
        if documents.records is not None:
            records = [] if records is None else records
            records += documents.records
        if documents.fields and documents.rows:
            parts.append(documents.fields)
    fields: dict[str, Column] = {}
    if any(part.keys() != parts[0].keys() for part in parts):
        records = [record for part in parts for record in _records_of(part)]
    else:
        fields = {name: concatenate([part[name] for part in parts]) for name in (parts[0] if parts else {})}
    columns = Columns(chunk.dataset, np.array(shards, np.int64), np.array(rows, np.int64), records, fields)
    columns = dataset.chosen(columns, bad)
    if chunk.order_key is None or len(columns) < 2:
        return columns
    return columns.take(permutation(chunk.order_key, len(columns)))


def _documents(dataset: Dataset, shard: int, start: int, stop: int) -> Documents:
    """What the format reads. What cannot be decoded may have been damaged on its way into the cache, and is fetched again."""
    try:
        documents = _decoded(dataset, shard, start, stop)
        if not documents.bad or not _fetched_again(dataset, shard):
            return documents
    except DataError as error:
        if not _fetched_again(dataset, shard, error):
            raise
    try:
        return _decoded(dataset, shard, start, stop)
    except DataError as error:
        _fetched_again(dataset, shard, error)
        raise


def _fetched_again(dataset: Dataset, shard: int, error: DataError | None = None) -> bool:
    """Whether the second fetch of a cached shard gave something else; notes on the error what both were."""
    hashes = dataset.fs.fetch_again(dataset.path(shard)) if isinstance(dataset.fs, CachedFiles) else None
    if hashes is None:
        return False
    before, after = hashes
    if error is not None:
        error.add_note(f"fetched twice: SHA-256 of what was cached is {before}, of what was fetched again {after}")
    if before != after:
        forget_decoded()
    return before != after


def _decoded(dataset: Dataset, shard: int, start: int, stop: int) -> Documents:
    try:
        with noted(dataset.path(shard), start):
            return dataset.format.read(dataset.shard(shard), start, stop)
    except ZephonError:
        raise
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise NotFound(
            f"{dataset.path(shard)} was there when the data was listed and is no file now: {error}",
            follows="its documents would be missing",
            remedy="restore the shard, or start a new run on the data as it is now",
        ) from error


def _records_of(fields: dict[str, Column]) -> list[Json]:
    """The documents of a shard that has other columns than its neighbours: each keeps the fields that it has."""
    count = len(next(iter(fields.values())))
    return [{name: column[i] for name, column in fields.items()} for i in range(count)]


def concatenate(columns: list[Column]) -> Column:
    """Columns of one field, concatenated: a list of their values where they differ in kind or type."""
    first = columns[0]
    if len(columns) == 1:
        return first
    ragged = [column for column in columns if isinstance(column, Ragged)]
    if len(ragged) == len(columns) and len({column.values.dtype for column in ragged}) == 1:
        return Ragged.joined(ragged)
    arrays = [column for column in columns if isinstance(column, np.ndarray)]
    if len(arrays) == len(columns) and len({array.dtype for array in arrays}) == 1:
        return np.concatenate(arrays)
    return [column[i] for column in columns for i in range(len(column))]
