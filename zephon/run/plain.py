"""Records of small JSON files: frozen dataclasses whose fields are the file's keys."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

T = TypeVar("T")


def as_record(kind: type[T], found: object) -> T | None:
    """A record from what ``RunDir.find_json`` found; None where that is nothing, or lacks a field.

    Keys that the record does not have are passed over: another version may have written them. Lists become tuples.
    """
    if not isinstance(found, dict):
        return None
    names = [field.name for field in dataclasses.fields(kind) if field.name in found]  # type: ignore[arg-type]
    values = {name: tuple(found[name]) if isinstance(found[name], list) else found[name] for name in names}
    try:
        return kind(**values)
    except TypeError:
        return None
