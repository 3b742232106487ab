"""A field of documents: from a column where there is one, else from the records; a dotted name reaches into nested dicts."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from zephon.types import Array, Columns


def column_of(columns: Columns, field: str) -> tuple[list[Any], Array | None]:
    """The values of a field, one a document.

    Returns:
        (values, present): ``present`` is bool[n], or None when every document has the field.
    """
    if field in columns.fields:
        return [columns.fields[field][i] for i in range(len(columns))], None
    head, _, inner = field.partition(".")
    if inner and head in columns.fields:
        column = columns.fields[head]
        return _inward((column[i] for i in range(len(columns))), inner)
    if columns.records is None:
        return [None] * len(columns), (np.zeros(len(columns), bool) if len(columns) else None)
    if not inner:
        try:
            return list(map(operator.itemgetter(field), columns.records)), None
        except KeyError:
            pass
    return _inward(columns.records, field)


def _inward(documents: Iterable[object], field: str) -> tuple[list[object], Array | None]:
    """The values at a dotted name inside documents, as `column_of` returns them."""
    values: list[object] = []
    present: list[bool] = []
    for document in documents:
        value, has_field = document, True
        for name in [field] if isinstance(document, dict) and field in document else field.split("."):
            has_field = isinstance(value, dict) and name in value
            value = value[name] if isinstance(value, dict) and has_field else None
            if not has_field:
                break
        values.append(value)
        present.append(has_field)
    return values, (None if all(present) else np.array(present))


def rename(columns: Columns, names: Mapping[str, str]) -> None:
    """Gives the values of fields a new name, old to new. Where a document lacks the field, it lacks it under both names."""
    for old, new in names.items():
        values, present = column_of(columns, old)
        if present is None:
            columns.fields[new] = columns.fields.pop(old, values)
            continue
        columns.fields.pop(new, None)
        rest = columns.records if columns.records is not None else [{} for _ in values]
        columns.records = [
            {**{name: kept for name, kept in record.items() if name != new}, **({new: value} if there else {})}
            for record, value, there in zip(rest, values, present.tolist(), strict=True)
        ]
