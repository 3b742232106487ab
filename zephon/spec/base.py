"""Base of the specs: plain containers in, checked and frozen values out, and one canonical text of each.

A field is pinned, guarded or free, and may be late; see zephon/spec/experiment.py.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self

from zephon.errors import ConfigError, nearest
from zephon.spec.fields import check

Kind = Literal["pinned", "guarded", "free"]
SpecField = dataclasses.Field[Any]


def _field(kind: Kind, default: object, late: bool) -> Any:
    held = {"default_factory": lambda: dict(default)} if isinstance(default, dict) else {"default": default}
    return dataclasses.field(**held, metadata={"kind": kind, "late": late})


def pinned(default: object = dataclasses.MISSING, *, late: bool = False) -> Any:
    """A field that defines the data stream."""
    return _field("pinned", default, late)


def guarded(default: object = dataclasses.MISSING, *, late: bool = False) -> Any:
    """A field that defines the model or its optimization."""
    return _field("guarded", default, late)


def free(default: object = dataclasses.MISSING, *, late: bool = False) -> Any:
    """A performance or placement setting."""
    return _field("free", default, late)


class Spec:
    """Base of the spec dataclasses: their values are checked against their annotations once, when they are made."""

    def __post_init__(self) -> None:
        check(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, object], *, at: str = "") -> Self:
        """Builds from plain containers; unknown keys, missing keys and wrong types are errors with the dotted name."""
        built = _build(cls, data, at)
        assert isinstance(built, cls)
        return built

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]

    def canonical_json(self) -> str:
        """Sorted keys, no spaces, shortest float form; equal specs give equal text."""
        return json.dumps(_written(self), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

    def sha256(self) -> str:
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()


def is_written(field: SpecField, value: object) -> bool:
    """Whether a record names the field: not a late one that has its default."""
    return not field.metadata["late"] or bool(value != field.default)


def _written(value: object) -> object:
    """Plain containers, without late fields that have their default."""
    if isinstance(value, Spec):
        fields = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))  # type: ignore[arg-type]
        return {field.name: _written(held) for field, held in fields if is_written(field, held)}
    return {key: _written(item) for key, item in value.items()} if isinstance(value, dict) else value


def leaves(spec: Spec, prefix: str) -> Iterator[tuple[str, SpecField, object]]:
    """(dotted name, field, value) of all that holds no further fields."""
    for field in dataclasses.fields(spec):  # type: ignore[arg-type]
        value, name = getattr(spec, field.name), prefix + field.name
        if isinstance(value, Spec):
            yield from leaves(value, name + ".")
        elif isinstance(value, dict) and value and all(isinstance(v, Spec) for v in value.values()):
            for key, item in sorted(value.items()):
                yield from leaves(item, f"{name}.{key}.")
        else:
            yield name, field, value


def _build(wanted: Any, value: object, at: str) -> object:
    if isinstance(wanted, type) and issubclass(wanted, Spec):
        return _build_spec(wanted, value, at)
    origin, args = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in args:
            return None
        (inner,) = (a for a in args if a is not type(None))
        return _build(inner, value, at)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise _wrong(at, value, "a mapping")
        return {str(key): _build(args[1], item, f"{at}.{key}") for key, item in value.items()}
    if origin is tuple:
        if not isinstance(value, (list, tuple)) or (args[-1] is not Ellipsis and len(value) != len(args)):
            raise _wrong(at, value, f"a list of {len(args)} values")
        kinds = [args[0]] * len(value) if args[-1] is Ellipsis else list(args)
        return tuple(_build(kind, item, f"{at}[{i}]") for i, (kind, item) in enumerate(zip(kinds, value, strict=True)))
    if wanted is Any or origin is Literal:  # choices are checked when the spec is made
        return value
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        raise _wrong(at, value, f"of type {wanted.__name__}")
    return value


def _build_spec(wanted: type[Spec], value: object, at: str) -> Spec:
    if isinstance(value, wanted):
        return value
    if not isinstance(value, Mapping):
        raise _wrong(at, value, "a mapping")
    hints = typing.get_type_hints(wanted)
    prefix = f"{at}." if at else ""
    for key in value:
        if key not in hints:
            raise ConfigError(
                f"{prefix}{key} is not a known field",
                follows="the setting would have no effect",
                remedy=nearest(str(key), hints),
            )
    fields = dataclasses.fields(wanted)  # type: ignore[arg-type]
    required = [f.name for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]
    missing = [f"{prefix}{name}" for name in required if name not in value]
    if missing:
        raise ConfigError(
            f"{', '.join(missing)} must be given",
            follows="there is no sensible default to run with",
            remedy=f"set {missing[0]}=VALUE",
        )
    try:
        return wanted(**{key: _build(hints[key], item, f"{prefix}{key}") for key, item in value.items()})
    except ConfigError as error:
        if at and not getattr(error, "__notes__", None):
            error.add_note(f"at {at}")
        raise


def _wrong(at: str, value: object, wanted: str) -> ConfigError:
    return ConfigError(f"{at}={value!r} is not {wanted}", remedy=f"give a value {wanted}")
