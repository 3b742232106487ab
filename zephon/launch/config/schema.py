"""The RunSpec as OmegaConf sees it: mutable mirrors of the frozen dataclasses, made from them and from nothing else.

OmegaConf makes nodes of frozen dataclasses read-only, so that groups could not fill them. A mirror has the same names,
types and defaults; a field without default is ``???``. ``kind_at`` gives the type of a field by its dotted name.

A *type* here is an annotation, which need not be a class: ``str``, ``tuple[str, ...]``, ``float | None``, ``Any``.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeGuard

from zephon.errors import ConfigError, nearest
from zephon.spec.base import Spec
from zephon.spec.experiment import RunSpec
from zephon.spec.fields import rules_of

_MISSING = "???"  # OmegaConf's own mark, which is not imported: completion reads this module and must be fast
_NO_EFFECT = "the setting would have no effect"


@functools.cache
def mirror(spec: type[Spec]) -> type:
    """A mutable dataclass with the fields of ``spec``, recursively."""
    hints = _hints(spec)
    fields: list[tuple[str, type, object]] = []
    for field in _fields(spec).values():
        hint = _mirrored(hints[field.name])
        fields.append((field.name, hint, _default(field, hint)))
    mirrored = dataclasses.make_dataclass(spec.__name__, fields)
    mirrored.__module__ = __name__
    return mirrored


def _mirrored(hint: object) -> type:
    """The annotation with mirrors for specs, and with what OmegaConf knows for the rest."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    mirrored: object = hint
    if is_spec(hint):
        mirrored = mirror(hint)  # type: ignore[arg-type]  # mypy reads the hash of an instance, not of the class
    elif _is_union(hint):
        mirrored = typing.Optional[_mirrored(without_none(hint))]  # noqa: UP045 - made at run time from a variable
    elif origin is dict:
        mirrored = dict[str, _mirrored(args[1])]  # type: ignore[misc]
    elif origin is tuple:
        mirrored = list[_mirrored(args[0])]  # type: ignore[misc]
    return typing.cast(type, mirrored)


def _default(field: dataclasses.Field[object], hint: type) -> object:
    """The default of the mirrored field: the same, in containers that may change."""
    default = field.default
    if field.default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=field.default_factory)
    if isinstance(default, Spec):
        values = {name: _mutable(getattr(default, name)) for name in _fields(type(default))}
        return dataclasses.field(default_factory=lambda: hint(**values))
    if typing.get_origin(hint) is dict:  # a missing mapping could not take a new key from the command line
        return dataclasses.field(default_factory=dict)
    if default is dataclasses.MISSING:
        return (
            dataclasses.field(default_factory=hint) if dataclasses.is_dataclass(hint) else dataclasses.field(default=_MISSING)
        )
    if isinstance(default, tuple):
        return dataclasses.field(default_factory=lambda: list(default))
    return default


def _mutable(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def kind_at(dotted: str) -> object:
    """The type of a field by dotted name; of what a free-form mapping holds, ``Any``.

    Raises:
        ConfigError: there is no such field; the nearest known one is named.
    """
    kind: object = RunSpec
    parts = dotted.split(".")
    for depth, part in enumerate(parts):
        kind, above = without_none(kind), ".".join(parts[:depth])
        if is_spec(kind):
            hints = _hints(kind)
            if part not in hints:
                known = [f"{above}.{name}" if above else name for name in hints]
                remedy, mapping = _did_you_mean(dotted, known), ".".join(parts[: depth - 1])
                if depth > 1 and is_mapping(mapping):
                    remedy += f"; a name with a dot in it is written {mapping}={{{'.'.join(parts[depth - 1 : -1])}: {{...}}}}"
                raise ConfigError(f"{dotted} is not a known field", follows=_NO_EFFECT, remedy=remedy)
            kind = hints[part]
        elif typing.get_origin(kind) is dict:
            kind = typing.get_args(kind)[1]
        elif kind is Any:
            return Any
        else:
            raise ConfigError(
                f"{dotted}: {above} is a single value and has no field {part!r}",
                follows=_NO_EFFECT,
                remedy=f"set {above}=VALUE",
            )
    return kind


def _did_you_mean(dotted: str, known: list[str]) -> str:
    """The fields with this last part, else the nearest of the same level, else of the whole spec by its last part."""
    if same := fields_named(dotted.rpartition(".")[2]):
        return f"did you mean {' or '.join(map(repr, same))}?"
    at_level = nearest(dotted, known)
    if at_level.startswith("did you mean"):
        return at_level
    by_last_part = {name.rsplit(".", 1)[-1]: name for name in field_names()}
    close = nearest(dotted.rsplit(".", 1)[-1], by_last_part)
    if close.startswith("did you mean"):
        return f"did you mean {by_last_part[close.split(chr(39))[1]]!r}?"
    return at_level


def fields_named(word: str) -> list[str]:
    """The fields with this dotted name, or with it as their last part: ``lr`` is ``optimizer.lr``."""
    return [name for name in field_names() if name == word or name.endswith(f".{word}")]


@functools.cache
def field_names() -> tuple[str, ...]:
    """All leaf fields by dotted name; mappings appear once, without their free keys."""
    return tuple(_names(RunSpec, ""))


def _names(spec: type[Spec], prefix: str) -> list[str]:
    names = []
    for name, hint in _hints(spec).items():
        kind = without_none(hint)
        if is_spec(kind):
            names += _names(kind, f"{prefix}{name}.")
        else:
            names.append(prefix + name)
    return names


def choices_of(dotted: str) -> list[str]:
    """The values that a field accepts, where it names them; booleans are ``true`` and ``false``."""
    parent, _, name = dotted.rpartition(".")
    try:
        owner = without_none(kind_at(parent) if parent else RunSpec)
    except ConfigError:
        return []
    rule = rules_of(owner).get(name) if is_spec(owner) else None  # type: ignore[arg-type]  # as in _mirrored
    if rule is None:
        return []
    return ["false", "true"] if rule.plain is bool else [str(choice) for choice in rule.choices]


def is_group(dotted: str) -> bool:
    """Whether the name is that of a mapping of fields."""
    return is_spec(without_none(kind_at(dotted)))


def is_mapping(dotted: str) -> bool:
    """Whether the name is that of a mapping of typed entries, such as ``data.datasets`` or ``data.tokens_per_byte``."""
    kind = without_none(kind_at(dotted)) if dotted else None
    return typing.get_origin(kind) is dict and typing.get_args(kind)[1] is not Any


def _hints(spec: type[Spec]) -> dict[str, object]:
    """The types of a spec's fields; choices are text to OmegaConf."""
    return {name: _text_for_choices(hint) for name, hint in typing.get_type_hints(spec).items()}


def _text_for_choices(hint: object) -> object:
    kind = without_none(hint)
    if typing.get_origin(kind) is not typing.Literal:
        return hint
    return str if kind is hint else typing.Optional[str]  # noqa: UP045 - as OmegaConf writes it


def without_none(hint: object) -> object:
    """The type without ``| None``."""
    if _is_union(hint):
        return next(arm for arm in typing.get_args(hint) if arm is not type(None))
    return hint


def takes_none(hint: object) -> bool:
    """Whether the type is ``... | None``."""
    return _is_union(hint) and type(None) in typing.get_args(hint)


def is_spec(hint: object) -> TypeGuard[type[Spec]]:
    return isinstance(hint, type) and issubclass(hint, Spec)


def _is_union(hint: object) -> bool:
    return typing.get_origin(hint) in (types.UnionType, typing.Union)


def _fields(spec: type[Spec]) -> Mapping[str, dataclasses.Field[object]]:
    return {field.name: field for field in dataclasses.fields(spec)}  # type: ignore[arg-type]
