"""Parquet: a document a row. Shards are planned by their size in bytes, and a range of bytes is that part of the rows.

Text becomes a list of strings; a list column of numbers, such as ``input_ids``, becomes a `Ragged` of their own type over
Arrow's buffers, so that data which is tokenized already is not copied before it is packed. Where a list or a number in it is
missing, the column is a list, and who wants numbers says which document has none.
"""

from __future__ import annotations

import functools
import os
import threading
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np

from zephon.errors import DataError, not_installed
from zephon.io.decoded import Held
from zephon.io.formats.base import Documents, Shard, bad_document, check_size
from zephon.io.storage import is_local, other_size
from zephon.types import Column, Ragged

FILES = 32  # kept open, each with a descriptor: a dataset may have more shards than a process may have descriptors


class _Table(Protocol):
    """The part of an Arrow table that is used here; Arrow declares no types."""

    @property
    def nbytes(self) -> int: ...
    @property
    def column_names(self) -> list[str]: ...
    def column(self, name: str) -> Any: ...
    def slice(self, offset: int, length: int) -> _Table: ...
    def filter(self, mask: object) -> _Table: ...


class _OpenFile(NamedTuple):
    """A file and its lock: a reader may serve one thread at a time."""

    file: Any
    lock: threading.Lock

    def read_row_group(self, number: int) -> _Table:
        with self.lock:
            table: _Table = self.file.read_row_group(number)
            return table


_tables: Held[_Table] = Held()
_open_files: Held[_OpenFile] = Held(FILES)


class Parquet:
    name = "parquet"

    def read(self, shard: Shard, start: int, stop: int) -> Documents:
        """The rows of a part of the file; rows are row numbers. A row whose text is not UTF-8 is among the bad documents.

        Raises:
            DataError: the file is damaged or not Parquet.
            ConfigError: pyarrow is not installed.
        """
        arrow = _arrow()
        try:
            rows, tables, count = _read_rows(shard, start, stop)
        except (arrow.ArrowException, OSError) as error:
            raise DataError(
                f"{shard.path} cannot be read as Parquet: {error}",
                follows="its documents would be dropped silently",
                remedy="restore the shard from its source",
            ) from error
        size = len(rows) * shard.size // max(1, count)
        if not tables:
            return Documents(rows, None, {})
        table: _Table = arrow.concat_tables(tables)
        try:
            return Documents(rows, None, _columns(arrow, table), (), size)
        except UnicodeDecodeError:  # Arrow checks text only when it becomes Python's
            garbled = _garbled(arrow, table)
        bad = tuple(_bad_row(shard, rows[i], why) for i, why in garbled.items())
        table = table.filter(arrow.array([i not in garbled for i in range(len(rows))], arrow.bool_()))
        rows = [row for i, row in enumerate(rows) if i not in garbled]
        return Documents(rows, None, _columns(arrow, table), bad, size)


def _read_rows(shard: Shard, start: int, stop: int) -> tuple[list[int], list[_Table], int]:
    """The row numbers of a part of the file, the parts of row groups that hold them, and how many rows the file has."""
    opened = _open_files.get(shard.key, lambda: _OpenFile(_open(shard), threading.Lock()), lambda _: 1)
    metadata = opened.file.metadata
    first, last = (edge * metadata.num_rows // shard.size for edge in (start, stop))
    tables, at = [], 0
    for number in range(metadata.num_row_groups):
        rows = metadata.row_group(number).num_rows
        begin, end = max(first - at, 0), min(last - at, rows)
        if begin < end:
            read = functools.partial(opened.read_row_group, number)
            tables.append(_tables.get((*shard.key, number), read, lambda table: table.nbytes).slice(begin, end - begin))
        at += rows
    return list(range(first, last)), tables, metadata.num_rows


def _columns(arrow: ModuleType, table: _Table) -> dict[str, Column]:
    return {name: _column(arrow, table.column(name)) for name in table.column_names}


def _column(arrow: ModuleType, column: Any) -> Column:
    if column.num_chunks == 1:
        array = column.chunk(0)
    else:
        array = column.combine_chunks()
        array = arrow.concat_arrays(array.chunks) if isinstance(array, arrow.ChunkedArray) else array
    kind = array.type
    lists = arrow.types.is_list(kind) or arrow.types.is_large_list(kind)
    if array.null_count:
        return list(array.to_pylist())
    if lists and _is_number(arrow, kind.value_type):
        offsets = array.offsets.to_numpy().astype(np.int64)
        values = array.values.slice(offsets[0], offsets[-1] - offsets[0])
        if not values.null_count:
            return Ragged(values.to_numpy(zero_copy_only=False), offsets - offsets[0])
    if arrow.types.is_integer(kind) or arrow.types.is_floating(kind):
        numbers: Column = array.to_numpy()
        return numbers
    return list(array.to_pylist())


def _is_number(arrow: ModuleType, kind: object) -> bool:
    return bool(arrow.types.is_integer(kind) or arrow.types.is_floating(kind) or arrow.types.is_boolean(kind))


def _garbled(arrow: ModuleType, table: _Table) -> dict[int, str]:
    """Rows with text that is not UTF-8, and why."""
    reasons: dict[int, str] = {}
    for name in table.column_names:
        kind = table.column(name).type
        if not (arrow.types.is_string(kind) or arrow.types.is_large_string(kind)):
            continue
        wide = arrow.large_binary() if arrow.types.is_large_string(kind) else arrow.binary()
        for i, raw in enumerate(table.column(name).cast(wide).to_pylist()):
            try:
                (raw or b"").decode()
            except UnicodeDecodeError as error:
                reasons.setdefault(i, f"column {name!r} is not UTF-8: {error}")
    return reasons


def _bad_row(shard: Shard, row: int, why: str) -> DataError:
    return bad_document(
        shard,
        row,
        f"a row's {why.partition(':')[0]}",
        f"row {row} of {shard.path}, {why}",
        follows="the document would be dropped or garbled",
        remedy="repair the row, remove it before a new run begins",
    )


def _open(shard: Shard) -> Any:
    from pyarrow import parquet

    if is_local(shard.fs):
        check_size(shard)  # also, to open a pipe would wait for ever
        return parquet.ParquetFile(shard.path, memory_map=True)
    file = shard.fs.open(shard.path, "rb")
    size = file.seek(0, os.SEEK_END)
    if size != shard.size:
        file.close()
        raise other_size(shard.path, f"has {size} bytes", shard.size)
    return parquet.ParquetFile(file)


def _arrow() -> ModuleType:
    try:
        import pyarrow
    except ImportError as error:
        raise not_installed("reading Parquet", "pyarrow", "parquet") from error
    module: ModuleType = pyarrow
    return module
