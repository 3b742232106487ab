"""Rows of Arrow tables as documents, whichever file they come from.

Text becomes a list of strings; a list column of numbers, such as ``input_ids``, becomes a `Ragged` of their own type over
Arrow's buffers, so that data which is tokenized already is not copied before it is packed. Where a list or a number in it is
missing, the column is a list, and who wants numbers says which document has none.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Protocol

import numpy as np

from zephon.errors import DataError, not_installed
from zephon.io.formats.base import Documents, Shard, bad_document
from zephon.types import Column, Ragged


class Table(Protocol):
    """The part of an Arrow table that is used here; Arrow declares no types."""

    @property
    def nbytes(self) -> int: ...
    @property
    def column_names(self) -> list[str]: ...
    def column(self, name: str) -> Any: ...
    def slice(self, offset: int, length: int) -> Table: ...
    def filter(self, mask: object) -> Table: ...


def load_arrow(what: str) -> ModuleType:
    """pyarrow, or a ConfigError that says how to install it; ``what`` needs it."""
    try:
        import pyarrow
    except ImportError as error:
        raise not_installed(what, "pyarrow", "parquet") from error
    module: ModuleType = pyarrow
    return module


def documents_of(arrow: ModuleType, shard: Shard, rows: list[int], tables: list[Table], size: int) -> Documents:
    """The rows of these tables, one after the other. A row whose text is not UTF-8 is among the bad documents."""
    if not tables:
        return Documents(rows, None, {}, (), size)
    table: Table = arrow.concat_tables(tables)
    try:
        return Documents(rows, None, _columns(arrow, table), (), size)
    except UnicodeDecodeError:  # Arrow checks text only when it becomes Python's
        garbled = _garbled(table, len(rows))
    bad = tuple(_bad_row(shard, rows[i], why) for i, why in garbled.items())
    table = table.filter(arrow.array([i not in garbled for i in range(len(rows))], arrow.bool_()))
    rows = [row for i, row in enumerate(rows) if i not in garbled]
    return Documents(rows, None, _columns(arrow, table), bad, size)


def _columns(arrow: ModuleType, table: Table) -> dict[str, Column]:
    if len(set(table.column_names)) < len(table.column_names):
        twice = next(name for name in table.column_names if table.column_names.count(name) > 1)
        raise DataError(
            f"two columns are called {twice!r}",
            follows="nobody could tell which of them is meant",
            remedy="write the file again with a name for each column",
        )
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


def _garbled(table: Table, count: int) -> dict[int, str]:
    """Rows with text that is not UTF-8, at any depth, and why."""
    reasons: dict[int, str] = {}
    for name in table.column_names:
        column = table.column(name)
        try:
            column.to_pylist()
        except UnicodeDecodeError:
            for i in range(count):
                try:
                    column[i].as_py()
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
