"""Fields of documents: from a column where there is one, else from the records; a dotted name reaches into nested dicts."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import TypeGuard

import numpy as np

from zephon.errors import DataError, ErrorAddress, address_error
from zephon.io.field import column_of
from zephon.types import ALIGNED_FIELDS, TOKEN_FIELDS, Array, Column, Columns, Json, Ragged, TokenColumns


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


def extract_by_rule(rules: Sequence[TokenColumns | None], columns: Columns) -> Columns:
    """As `extract_token_columns`, where each dataset has one rule for the whole stream; a stage.

    Args:
        rules: by dataset; None where its documents tell nothing.

    Raises:
        DataError: also where a document has other columns than the stream; names the document.
    """
    rule = rules[columns.dataset]
    if rule is not None:
        for name in ALIGNED_FIELDS:
            if name not in rule.aligned:
                _refuse_column(columns, name, rule)
    try:
        columns = extract_token_columns(columns)
    except DataError:
        if rule is not None:
            for name in rule.aligned:
                _refuse_missing(columns, name, rule)
        raise
    ids = columns.fields.get("input_ids")
    if rule is None or not isinstance(ids, Ragged) or len(columns) == 0:
        return columns
    fields = dict(columns.fields)
    for name in rule.aligned:
        if not _is_aligned(fields.get(name), ids):
            fields[name] = _column_of_rule(columns, name, ids, rule)
    for name, column in columns.fields.items():
        if name == "input_ids" or name in rule.aligned or not _is_aligned(column, ids) or len(ids.values) == 0:
            continue
        if name not in rule.others:
            raise _other_columns(columns, 0, name, rule, has=True)
        fields[name] = [column[i] for i in range(len(columns))]  # as long as the document by chance
    return with_fields(columns, columns.records, fields)


def _is_aligned(column: Column | None, ids: Ragged) -> TypeGuard[Ragged]:
    return isinstance(column, Ragged) and (column.offsets is ids.offsets or np.array_equal(column.offsets, ids.offsets))


def _refuse_column(columns: Columns, name: str, rule: TokenColumns) -> None:
    """Raises DataError for the first document with numbers in this field."""
    if name in columns.fields or any(name in record for record in columns.records or ()):
        for i, value in enumerate(column_of(columns, name)[0]):
            if _is_numbers(value):
                raise _other_columns(columns, i, name, rule, has=True)


def _refuse_missing(columns: Columns, name: str, rule: TokenColumns) -> None:
    """Raises DataError for the first document without this field."""
    values, present = column_of(columns, name)
    for i, value in enumerate(values):
        if value is None or (present is not None and not present[i]):
            raise _other_columns(columns, i, name, rule, has=False)


def _column_of_rule(columns: Columns, name: str, ids: Ragged, rule: TokenColumns) -> Ragged:
    """A column that the stream has and `extract_token_columns` has not found: of documents without a token, or an error."""
    _refuse_missing(columns, name, rule)
    rows = _rows_of(columns, name, ids=False)
    for i, row in enumerate(rows):
        if len(row) != len(ids[i]):
            what = f"field {name!r} holds {len(row)} numbers beside {len(ids[i])} token ids"
            raise bad_document(columns, i, what, "store one number for each token in every document")
    return Ragged.of(rows, np.uint8)  # no document here has a token


def _other_columns(columns: Columns, i: int, name: str, rule: TokenColumns, *, has: bool) -> DataError:
    verbs = ("has", "has none") if has else ("has no", "has one")
    return bad_document(
        columns,
        i,
        f"a document {verbs[0]} field {name!r} with one number for each token, and the first one of its dataset ({rule.first}) "
        f"{verbs[1]}",
        "give all documents of a stream the same fields, with a map_transform or in the files",
    )


def extract_token_columns(columns: Columns) -> Columns:
    """Extracts token ids from the records as ``input_ids``, with every field that has one number a token beside them.

    A stage. Documents without tokens pass as they are. `ALIGNED_FIELDS` have one number a token in every document or in none;
    whichever else has one is seen at the longest document.

    Raises:
        DataError: a document has no ids, ids out of range, or a mask or labels of another length; names the document.
    """
    if isinstance(columns.fields.get("input_ids"), Ragged) and columns.records is not None:
        return columns  # an op has made them, or they were extracted before
    field = _token_field(columns)
    if field is None:
        return columns
    ids = _ids_of(columns, field)
    if field in columns.fields:
        fields = {("input_ids" if name == field else name): column for name, column in columns.fields.items()}
    else:
        fields = dict(columns.fields)
    fields["input_ids"] = ids
    for name in ALIGNED_FIELDS:
        aligned = _one_a_token(columns, name, ids)
        if aligned is not None:
            fields[name] = aligned
    longest = int(np.argmax(ids.lengths())) if len(ids) else 0
    document = columns.document(longest) if len(columns) else {}
    for name, value in document.items():
        if name in (field, *ALIGNED_FIELDS) or isinstance(columns.fields.get(name), Ragged):
            continue
        if _is_numbers(value) and len(value) == len(ids[longest]):
            aligned = _aligned(columns, name, ids)
            if aligned is not None:
                fields[name] = aligned
    return with_fields(columns, columns.records, fields)


def _token_field(columns: Columns) -> str | None:
    """Where the documents' token ids are stored: the columns of numbers first, then what holds numbers in any document."""
    for name in TOKEN_FIELDS:
        if isinstance(columns.fields.get(name), Ragged):
            return name
    return next((name for name in TOKEN_FIELDS if _holds_numbers(columns, name)), None)


def _ids_of(columns: Columns, field: str) -> Ragged:
    """The token ids as uint32."""
    column = columns.fields.get(field)
    if not isinstance(column, Ragged):
        return Ragged.of(_rows_of(columns, field, ids=True), np.uint32)
    if column.values.dtype == np.uint32:
        return column
    if not _are_ids(column.values):
        _rows_of(columns, field, ids=True)  # names the first document that is at fault
    values = column.values
    return Ragged(values.view(np.uint32) if values.dtype == np.int32 else values.astype(np.uint32), column.offsets)


def _one_a_token(columns: Columns, name: str, ids: Ragged) -> Ragged | None:
    """A field of `ALIGNED_FIELDS`; None where no document has numbers there."""
    if name not in columns.fields and not any(name in record for record in columns.records or ()):
        return None
    column = columns.fields.get(name)
    if not isinstance(column, Ragged):
        values = column_of(columns, name)[0]
        empty = len(ids.values) == 0 and all(isinstance(value, list) and not value for value in values)
        if not empty and not any(_is_numbers(value) for value in values):
            _refuse_other_lists(columns, name, values)
            return None
        rows = _rows_of(columns, name, ids=False)
        filled = {row.dtype for row in rows if len(row)}
        column = Ragged.of(rows, np.result_type(*filled) if filled else np.int64)
    wrong = np.flatnonzero(column.lengths() != ids.lengths())
    if len(wrong):
        i = int(wrong[0])
        what = f"field {name!r} holds {len(column[i])} numbers beside {len(ids[i])} token ids"
        raise bad_document(columns, i, what, "store one number for each token in every document")
    if column.values.dtype.kind == "f" and not np.isfinite(column.values).all():
        i = next(i for i in range(len(column)) if not np.isfinite(column[i]).all())
        raise bad_document(columns, i, f"field {name!r} holds a number that is not finite", "store numbers in every document")
    return Ragged(_of_own_type(name, column.values), ids.offsets)


def _refuse_other_lists(columns: Columns, name: str, values: Sequence[object]) -> None:
    """Raises DataError for a list of something else than numbers, which nobody would use. One value a document is no column."""
    for i, value in enumerate(values):
        if isinstance(value, (list, tuple, np.ndarray)) and len(value) and any(item is not None for item in value):
            what = f"field {name!r} holds {str(value)[:40]!r} beside token ids, not numbers"
            raise bad_document(columns, i, what, "store one number for each token, or give the field another name")


def _of_own_type(name: str, values: Array) -> Array:
    """Masks are uint8 and weights float32, labels int64, in whatever type a format stores them."""
    if values.dtype.kind == "f":
        return values.astype(np.float32, copy=False)
    if name != "loss_mask":
        return values.astype(np.int64, copy=False)
    small = len(values) == 0 or (int(values.min()) >= 0 and int(values.max()) < 1 << 8)
    return values.astype(np.uint8 if small else np.float32, copy=False)


def _aligned(columns: Columns, name: str, ids: Ragged) -> Ragged | None:
    """A field with one number a token; None where it is something else."""
    try:
        rows = _rows_of(columns, name, ids=False)
    except DataError:
        return None
    filled = {row.dtype for row in rows if len(row)}
    aligned = Ragged.of(rows, np.result_type(*filled) if filled else np.int64)
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
    """Whether a field is a list of numbers in any document, or a list without any in all that have one.

    Documents whose ``input_ids`` are null are documents of ids as well: each of them is a bad one.
    """
    values, present = column_of(columns, name)
    had = [value for value in values if value is not None]
    if any(_is_numbers(value) for value in had):
        return True
    if not had:
        return name == TOKEN_FIELDS[0] and len(values) > 0 and (present is None or bool(present.any()))
    return all(isinstance(value, (list, tuple, np.ndarray)) and all(item is None for item in value) for value in had)


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
            what = f"field {name!r} holds {str(value)[:40]!r}, not {'token ids' if ids else 'numbers'}"
            raise bad_document(
                columns, i, what, "store a list of whole numbers from 0 on" if ids else "store a list of numbers"
            )
        rows.append(row)
    return rows


def _are_ids(row: Array) -> bool:
    """Whether all are whole numbers from 0 to 2**32 - 1. What the type of the numbers says already is not looked for."""
    if len(row) == 0 or row.dtype.kind not in "iu":
        return len(row) == 0
    of_type = np.iinfo(row.dtype)
    return (of_type.min == 0 or int(row.min()) >= 0) and (of_type.max < 1 << 32 or int(row.max()) < 1 << 32)
