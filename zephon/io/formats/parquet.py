"""Parquet: a document a row. Shards are planned by their size in bytes, and a range of bytes is that part of the rows.

Text becomes a list of strings; a list column of whole numbers, such as ``input_ids``, becomes a `Ragged` over Arrow's own
buffers, so that data which is tokenized already is not copied before it is packed.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from zephon.errors import ConfigError, DataError
from zephon.io.decoded import Held, listing_of
from zephon.io.formats.base import Documents, bad_document
from zephon.io.storage import is_local
from zephon.types import Column, Ragged

if TYPE_CHECKING:
    from zephon.io.dataset import Dataset

FILES = 32  # kept open, each with a descriptor: a dataset may have more shards than a process may have descriptors
_held = Held()
_open_files = Held(FILES)


class Parquet:
    name = "parquet"

    def read(self, dataset: Dataset, shard: int, start: int, stop: int) -> Documents:
        """The rows of a part of the file; rows are row numbers. A row whose text is not UTF-8 is among the bad documents.

        Raises:
            DataError: the file is damaged or not Parquet.
            ConfigError: pyarrow is not installed.
        """
        arrow = _arrow()
        path, size = dataset.path(shard), int(dataset.sizes[shard])
        key = (listing_of(dataset), shard)
        try:
            file, lock = _open_files.get(key, lambda: (_open(dataset, path), threading.Lock()), lambda _: 1)
            metadata = file.metadata
            first, last = (edge * metadata.num_rows // size for edge in (start, stop))
            tables, at = [], 0
            for group in range(metadata.num_row_groups):
                rows = metadata.row_group(group).num_rows
                begin, end = max(first - at, 0), min(last - at, rows)
                if begin < end:
                    table = _held.get((*key, group), functools.partial(_group, file, lock, group), lambda t: int(t.nbytes))
                    tables.append(table.slice(begin, end - begin))
                at += rows
        except (arrow.ArrowException, OSError) as error:
            raise DataError(
                f"{path} cannot be read as Parquet: {error}",
                follows="its documents would be lost without a word",
                remedy="restore the shard from its source",
            ) from error
        rows, bad = list(range(first, last)), []
        fields: dict[str, Column] = {}
        if tables:
            table = arrow.concat_tables(tables)
            try:
                fields = {name: _column(arrow, table.column(name)) for name in table.column_names}
            except UnicodeDecodeError:  # Arrow does not look at text before it becomes Python's
                garbled = _garbled(arrow, table)
                bad = [_bad_row(dataset, shard, rows[i], why) for i, why in garbled.items()]
                table = table.filter(arrow.array([i not in garbled for i in range(len(rows))], arrow.bool_()))
                rows = [row for i, row in enumerate(rows) if i not in garbled]
                fields = {name: _column(arrow, table.column(name)) for name in table.column_names}
        return Documents(rows, None, fields, tuple(bad))


def _column(arrow: Any, column: Any) -> Column:
    if column.num_chunks == 1:
        array = column.chunk(0)
    else:
        array = column.combine_chunks()
        array = arrow.concat_arrays(array.chunks) if isinstance(array, arrow.ChunkedArray) else array
    kind = array.type
    lists = arrow.types.is_list(kind) or arrow.types.is_large_list(kind)
    if array.null_count:
        return list(array.to_pylist())
    if lists and arrow.types.is_integer(kind.value_type):
        offsets = array.offsets.to_numpy().astype(np.int64)
        values = array.values.slice(offsets[0], offsets[-1] - offsets[0]).to_numpy()
        if values.dtype in (np.int32, np.uint32):
            values = values.view(np.uint32)
        return Ragged(values.astype(np.uint32, copy=False), offsets - offsets[0])
    if arrow.types.is_integer(kind) or arrow.types.is_floating(kind):
        numbers: Column = array.to_numpy()
        return numbers
    return list(array.to_pylist())


def _garbled(arrow: Any, table: Any) -> dict[int, str]:
    """Rows with text that is not UTF-8, and why."""
    found: dict[int, str] = {}
    for name in table.column_names:
        kind = table.column(name).type
        if not (arrow.types.is_string(kind) or arrow.types.is_large_string(kind)):
            continue
        wide = arrow.large_binary() if arrow.types.is_large_string(kind) else arrow.binary()
        for i, raw in enumerate(table.column(name).cast(wide).to_pylist()):
            try:
                (raw or b"").decode()
            except UnicodeDecodeError as error:
                found.setdefault(i, f"column {name!r} is not UTF-8: {error}")
    return found


def _bad_row(dataset: Dataset, shard: int, row: int, why: str) -> DataError:
    return bad_document(
        (shard, row),
        f"a row's {why.partition(':')[0]}",
        f"row {row} of {dataset.path(shard)}, {why}",
        follows="the document would be left out or garbled",
        remedy="mend the row, remove it before a new run begins",
    )


def _group(file: Any, lock: threading.Lock, group: int) -> Any:
    with lock:  # a reader's position is not made for several threads
        return file.read_row_group(group)


def _open(dataset: Dataset, path: str) -> Any:
    from pyarrow import parquet

    if is_local(dataset.fs):
        return parquet.ParquetFile(path, memory_map=True)
    return parquet.ParquetFile(dataset.fs.open(path, "rb"))


def _arrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ConfigError(
            "reading Parquet needs pyarrow, which is not installed",
            follows="no document could be read",
            remedy="install zephon-elastic[parquet]",
        ) from error
    return pyarrow
