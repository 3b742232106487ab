"""Taking a field out of documents: a column where there is one, else out of the records; dotted names go inward."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon.errors import DataError, ErrorAddress, address_error
from zephon.types import Array, Column, Columns, Ragged

TOKEN_FIELDS = ("input_ids", "tokens", "token_ids", "ids")


def column_of(columns: Columns, field: str) -> tuple[list[Any], Array | None]:
    """The values of a field, one a document.

    Returns:
        (values, present): ``present`` is bool[n], or None when every document has the field.
    """
    if field in columns.fields:
        return [columns.fields[field][i] for i in range(len(columns))], None
    if columns.records is None:
        return [None] * len(columns), (np.zeros(len(columns), bool) if len(columns) else None)
    if "." not in field:
        try:
            return list(map(operator.itemgetter(field), columns.records)), None
        except KeyError:
            pass
    values, present = [], np.ones(len(columns), bool)
    for i, record in enumerate(columns.records):
        value: Any = record
        for name in [field] if field in record else field.split("."):
            if not isinstance(value, dict) or name not in value:
                value, present[i] = None, False
                break
            value = value[name]
        values.append(value)
    return values, (None if present.all() else present)


def put(record: dict[str, Any], field: str, value: Any) -> None:
    """Sets a field of one record; the dicts on a dotted way are copied, so that the input stays as it was."""
    names = [field] if field in record or "." not in field else field.split(".")
    for name in names[:-1]:
        record[name] = dict(record[name])
        record = record[name]
    record[names[-1]] = value


def bad_document(columns: Columns, index: int, what: str, remedy: str) -> DataError:
    """An error about document ``index``, which carries its address."""
    error = DataError(what, follows="the document would be left out without a word", remedy=remedy)
    mark(error, columns, index)
    return error


def mark(error: BaseException, columns: Columns, index: int) -> None:
    """Lets an exception carry a document's address, for whoever knows the names to write it down."""
    address_error(error, ErrorAddress(int(columns.shard[index]), int(columns.row[index]), columns.source(index)))


def extract_token_columns(columns: Columns) -> Columns:
    """Token ids out of the records, as ``input_ids``, with every field that has one number a token beside them.

    A stage. Documents without tokens pass as they are.
    """
    found = next((name for name in TOKEN_FIELDS if isinstance(columns.fields.get(name), Ragged)), None)
    if found == "input_ids":
        return columns
    if found is not None:
        fields = {("input_ids" if name == found else name): column for name, column in columns.fields.items()}
        return _with(columns, columns.records, fields)
    found = next((name for name in TOKEN_FIELDS if _holds_numbers(columns, name)), None)
    if found is None:
        return columns
    ids = _ragged(columns, found, np.uint32)
    fields = {name: column for name, column in columns.fields.items() if name != found}
    fields["input_ids"] = ids
    shown = int(np.argmax(ids.lengths())) if len(ids) else 0  # the longest document tells which fields go with the tokens
    document = {} if not len(columns) else _document(columns, shown)
    for name, value in document.items():
        if name != found and _is_numbers(value) and len(value) == len(ids[shown]):
            aligned = _ragged(columns, name, np.uint8 if name == "loss_mask" else None, optional=True)
            if aligned is not None and np.array_equal(aligned.offsets, ids.offsets):
                fields[name] = aligned
    return _with(columns, columns.records, fields)


def _with(columns: Columns, records: list[dict[str, Any]] | None, fields: dict[str, Column]) -> Columns:
    return Columns(
        columns.dataset,
        columns.shard,
        columns.row,
        records,
        fields,
        columns.sources,
        columns.dropped,
        columns.quarantined,
    )


with_fields = _with


def _document(columns: Columns, i: int) -> dict[str, Any]:
    record = columns.records[i] if columns.records is not None else {}
    return {**record, **{name: column[i] for name, column in columns.fields.items()}}


def _holds_numbers(columns: Columns, name: str) -> bool:
    """Whether a field is a list of numbers, judged by the first document where it is not empty."""
    values = [value for value in column_of(columns, name)[0] if value is not None]
    filled = next((value for value in values if isinstance(value, str) or not hasattr(value, "__len__") or len(value)), None)
    return bool(values) and (isinstance(values[0], (list, tuple, np.ndarray)) if filled is None else _is_numbers(filled))


def _is_numbers(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 1 and value.dtype.kind in "iufb"
    return isinstance(value, (list, tuple)) and len(value) > 0 and isinstance(value[0], (int, float))


def _ragged(columns: Columns, name: str, dtype: npt.DTypeLike | None, *, optional: bool = False) -> Any:
    values, _ = column_of(columns, name)
    rows: list[Array] = []
    for i, value in enumerate(values):
        try:
            row = np.asarray(value)
        except ValueError:
            row = np.empty((0, 0))
        if row.size == 0 and row.ndim == 1:
            row = np.empty(0, np.int64)
        if row.ndim != 1 or row.dtype.kind not in "iufb" or (dtype is np.uint32 and not _are_ids(row)):
            if optional:
                return None
            raise bad_document(
                columns,
                i,
                f"field {name!r} holds {str(value)[:40]!r}, not token ids",
                "store a list of whole numbers from 0 on",
            )
        rows.append(row)
    if dtype is None:
        dtype = _common([row for row in rows if len(row)])
    return Ragged.of(rows, dtype)


def _are_ids(row: Array) -> bool:
    return len(row) == 0 or (row.dtype.kind in "iu" and int(row.min()) >= 0 and int(row.max()) < 1 << 32)


def _common(rows: Sequence[Array]) -> npt.DTypeLike:
    return np.result_type(*{row.dtype for row in rows}) if rows else np.int64
