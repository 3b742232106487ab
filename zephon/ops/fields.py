"""Fields of documents: from a column where there is one, else from the records; a dotted name reaches into nested dicts."""

from __future__ import annotations

import operator
from collections.abc import Sized
from typing import Any, TypeGuard

import numpy as np

from zephon.errors import DataError, ErrorAddress, address_error
from zephon.types import TOKEN_FIELDS, Array, Column, Columns, Json, Ragged


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
        value: object = record
        for name in [field] if field in record else field.split("."):
            if not isinstance(value, dict) or name not in value:
                value, present[i] = None, False
                break
            value = value[name]
        values.append(value)
    return values, (None if present.all() else present)


def put(record: Json, field: str, value: object) -> None:
    """Sets a field of one record; the dicts on a dotted way are copied, so that the input stays as it was."""
    names = [field] if field in record or "." not in field else field.split(".")
    for name in names[:-1]:
        record[name] = dict(record[name])
        record = record[name]
    record[names[-1]] = value


def bad_document(columns: Columns, index: int, what: str, remedy: str) -> DataError:
    """An addressed error about document ``index``."""
    error = DataError(what, follows="the document would be dropped silently", remedy=remedy)
    mark(error, columns, index)
    return error


def mark(error: BaseException, columns: Columns, index: int) -> None:
    """Lets an exception carry a document's address, for the caller that knows the names."""
    address_error(error, ErrorAddress(int(columns.shard[index]), int(columns.row[index]), columns.source(index)))


def extract_token_columns(columns: Columns) -> Columns:
    """Extracts token ids from the records as ``input_ids``, with every field that has one number a token beside them.

    A stage. Documents without tokens pass as they are.
    """
    field = next((name for name in TOKEN_FIELDS if isinstance(columns.fields.get(name), Ragged)), None)
    if field == "input_ids":
        return columns
    if field is not None:
        fields = {("input_ids" if name == field else name): column for name, column in columns.fields.items()}
        return with_fields(columns, columns.records, fields)
    field = next((name for name in TOKEN_FIELDS if _holds_numbers(columns, name)), None)
    if field is None:
        return columns
    ids = Ragged.of(_rows_of(columns, field, ids=True), np.uint32)
    fields = {name: column for name, column in columns.fields.items() if name != field}
    fields["input_ids"] = ids
    longest = int(np.argmax(ids.lengths())) if len(ids) else 0  # which fields go with the tokens is seen at this document
    document = columns.document(longest) if len(columns) else {}
    for name, value in document.items():
        if name != field and _is_numbers(value) and len(value) == len(ids[longest]):
            aligned = _aligned(columns, name, ids)
            if aligned is not None:
                fields[name] = aligned
    return with_fields(columns, columns.records, fields)


def _aligned(columns: Columns, name: str, ids: Ragged) -> Ragged | None:
    """A field with one number a token; None where it is something else."""
    try:
        rows = _rows_of(columns, name, ids=False)
    except DataError:
        return None
    filled = {row.dtype for row in rows if len(row)}
    aligned = Ragged.of(rows, np.uint8 if name == "loss_mask" else np.result_type(*filled) if filled else np.int64)
    return aligned if np.array_equal(aligned.offsets, ids.offsets) else None


def with_fields(columns: Columns, records: list[Json] | None, fields: dict[str, Column]) -> Columns:
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


def _holds_numbers(columns: Columns, name: str) -> bool:
    """Whether a field is a list of numbers, judged by the first document where it is not empty."""
    values = [value for value in column_of(columns, name)[0] if value is not None]
    filled = next((value for value in values if isinstance(value, str) or not hasattr(value, "__len__") or len(value)), None)
    return bool(values) and (isinstance(values[0], (list, tuple, np.ndarray)) if filled is None else _is_numbers(filled))


def _is_numbers(value: object) -> TypeGuard[Sized]:
    if isinstance(value, np.ndarray):
        return value.ndim == 1 and value.dtype.kind in "iufb"
    return isinstance(value, (list, tuple)) and len(value) > 0 and isinstance(value[0], (int, float))


def _rows_of(columns: Columns, name: str, *, ids: bool) -> list[Array]:
    """A field's numbers, one array a document.

    Args:
        ids: they must be token ids.

    Raises:
        DataError: a document has something else; names the document.
    """
    rows: list[Array] = []
    for i, value in enumerate(column_of(columns, name)[0]):
        try:
            row = np.asarray(value)
        except ValueError:
            row = np.empty((0, 0))
        if row.size == 0 and row.ndim == 1:
            row = np.empty(0, np.int64)
        if row.ndim != 1 or row.dtype.kind not in "iufb" or (ids and not _are_ids(row)):
            what = f"field {name!r} holds {str(value)[:40]!r}, not token ids"
            raise bad_document(columns, i, what, "store a list of whole numbers from 0 on")
        rows.append(row)
    return rows


def _are_ids(row: Array) -> bool:
    return len(row) == 0 or (row.dtype.kind in "iu" and int(row.min()) >= 0 and int(row.max()) < 1 << 32)
