"""Taking a field out of documents: a column where there is one, else out of the records; dotted names go inward."""

from __future__ import annotations

from typing import Any

import numpy as np

from zephon.types import Array, Columns


def column_of(columns: Columns, field: str) -> tuple[list[Any], Array | None]:
    """The values of a field, one a document.

    Returns:
        (values, present): ``present`` is bool[n], or None when every document has the field.
    """
    if field in columns.fields:
        return list(columns.fields[field]), None
    if columns.records is None:
        return [None] * len(columns), (np.zeros(len(columns), bool) if len(columns) else None)
    if "." not in field:
        try:
            return [record[field] for record in columns.records], None
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
