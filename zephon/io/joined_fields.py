"""Text of several fields, ``"{title} by {author.name}"``: a name in braces, dotted for a nested field, stands for its text.

Braces themselves are written twice. A field may hold text, a number, or a list of texts, which is joined by line ends.
"""

from __future__ import annotations

import functools
import string

import numpy as np

from zephon.errors import ConfigError, DataError, ErrorAddress, address_error
from zephon.io.field import column_of
from zephon.types import Columns


def is_template(field: str) -> bool:
    return "{" in field or "}" in field


@functools.lru_cache(maxsize=256)
def parts_of(template: str) -> list[tuple[str, str | None]]:
    """The template as (text before, name of a field or None for the end). Raises ConfigError where it is none."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(f"field={template!r}: {error}", remedy=_HOW) from error
    for _, name, spec, conversion in parts:
        if name is not None and (not name.strip() or spec or conversion or "[" in name):
            raise ConfigError(f"field={template!r}: {{{name}}} is no name of a field", remedy=_HOW)
    if not any(name for _, name, _, _ in parts):
        raise ConfigError(f"field={template!r} names no field", follows="every document would be the same", remedy=_HOW)
    return [(before, name) for before, name, _, _ in parts]


_HOW = 'write names in braces, "{title}\\n\\n{body}", and braces themselves twice'


def join_fields(columns: Columns, template: str, target: str, bad: list[DataError] | None) -> Columns:
    """The documents with the text of a template in the field ``target``.

    Args:
        bad: takes the errors about documents that lack a field; without it the first is raised.
    """
    parts = parts_of(template)
    values = {name: column_of(columns, name)[0] for _, name in parts if name is not None}
    texts, kept = [], []
    for row in range(len(columns)):
        text = ""
        for before, name in parts:
            value = None if name is None else _text(values[name][row])
            if name is not None and value is None:
                error = _not_text(columns, row, template, name, values[name][row])
                if bad is None:
                    raise error
                bad.append(error)
                break
            text += before + (value or "")
        else:
            texts.append(text)
            kept.append(row)
    if len(kept) < len(columns):
        columns = columns.take(np.array(kept, np.int64))
    columns.fields[target] = texts
    return columns


def _text(value: object) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return "\n".join(value)
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return str(value) if is_number else None


def _not_text(columns: Columns, row: int, template: str, name: str, value: object) -> DataError:
    what = "nothing" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"
    error = DataError(
        f"field {name!r} of {template!r} holds {what}, not text",
        follows="the document would be dropped silently, or trained on without it",
        remedy="repair the document, name another field, or drop such documents: on_error='quarantine'",
    )
    address_error(
        error, ErrorAddress(int(columns.shard[row]), int(columns.row[row]), kind="a field of a template holds no text")
    )
    return error
