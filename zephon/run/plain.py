"""Records of small JSON files: frozen dataclasses whose fields are the file's keys."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

T = TypeVar("T")


def as_record(kind: type[T], data: object) -> T | None:
    """A record from the result of ``RunDir.find_json``; None where that is not an object, or lacks a field.

    Keys that the record does not have are ignored: another version may have written them. Lists become tuples.
    """
    if not isinstance(data, dict):
        return None
    names = [field.name for field in dataclasses.fields(kind) if field.name in data]  # type: ignore[arg-type]
    values = {name: tuple(data[name]) if isinstance(data[name], list) else data[name] for name in names}
    try:
        return kind(**values)
    except TypeError:
        return None
