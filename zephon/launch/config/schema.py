"""The RunSpec as OmegaConf sees it: mutable mirrors of the frozen dataclasses, made from them and from nothing else.

OmegaConf makes nodes of frozen dataclasses read-only, so that groups could not fill them. A mirror has the same names,
types and defaults; a field without default is ``???``. ``kind_at`` answers for a dotted name what type stands there.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Any

from omegaconf import MISSING

from zephon.errors import ConfigError, nearest
from zephon.spec.experiment import RunSpec, Spec
from zephon.spec.fields import rules_of


@functools.cache
def mirror(spec: type[Spec]) -> type:
    """A mutable dataclass with the fields of ``spec``, recursively."""
    hints = _hints(spec)
    fields: list[tuple[str, Any, Any]] = []
    for field in dataclasses.fields(spec):  # type: ignore[arg-type]
        hint = _mirrored(hints[field.name])
        fields.append((field.name, hint, _default(field, hint)))
    made = dataclasses.make_dataclass(spec.__name__, fields)
    made.__module__ = __name__
    return made


def _mirrored(hint: Any) -> Any:
    if _is_spec(hint):
        return mirror(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        inner = [a for a in args if a is not type(None)]
        return typing.Optional[_mirrored(inner[0])]  # noqa: UP045 - built at run time from a variable
    if origin is dict:
        return dict[str, _mirrored(args[1])]  # type: ignore[misc]
    if origin is tuple:
        return list[_mirrored(args[0])]  # type: ignore[misc]
    return hint


def _default(field: dataclasses.Field[Any], hint: Any) -> Any:
    default: Any = field.default
    if field.default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=field.default_factory)
    if isinstance(default, Spec):
        values = {f.name: getattr(default, f.name) for f in dataclasses.fields(default)}  # type: ignore[arg-type]
        return dataclasses.field(default_factory=lambda: hint(**{k: _plain(v) for k, v in values.items()}))
    if typing.get_origin(hint) is dict:  # a missing mapping could not take a new key from the command line
        return dataclasses.field(default_factory=dict)
    if field.default is dataclasses.MISSING:
        return dataclasses.field(default_factory=hint) if isinstance(hint, type) and dataclasses.is_dataclass(hint) else MISSING
    if isinstance(default, tuple):
        return dataclasses.field(default_factory=lambda: list(default))
    return default


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def kind_at(dotted: str) -> Any:
    """The type of a field by dotted name; of a free-form mapping's content, ``Any``.

    Raises:
        ConfigError: there is no such field; the nearest known one is named.
    """
    where: Any = RunSpec
    parts = dotted.split(".")
    for depth, part in enumerate(parts):
        where = _inner(where)
        if _is_spec(where):
            hints = _hints(where)
            if part not in hints:
                known = [".".join([*parts[:depth], name]) for name in hints]
                raise ConfigError(
                    f"{dotted} is not a known field",
                    follows="the setting would have no effect",
                    remedy=_did_you_mean(dotted, known),
                )
            where = hints[part]
        elif typing.get_origin(where) is dict:
            where = typing.get_args(where)[1]
        elif where is Any:
            return Any
        else:
            raise ConfigError(
                f"{dotted}: {'.'.join(parts[:depth])} is a single value and has no field {part!r}",
                follows="the setting would have no effect",
                remedy=f"set {'.'.join(parts[:depth])}=VALUE",
            )
    return where


def _did_you_mean(dotted: str, known: list[str]) -> str:
    """The nearest field of the same level, else of the whole spec by its last part."""
    at_level = nearest(dotted, known)
    if at_level.startswith("did you mean"):
        return at_level
    everywhere = {name.rsplit(".", 1)[-1]: name for name in field_names()}
    last = dotted.rsplit(".", 1)[-1]
    close = nearest(last, everywhere)
    if close.startswith("did you mean"):
        found = everywhere[close.split("'")[1]]
        return f"did you mean {found!r}?"
    return at_level


@functools.cache
def field_names() -> tuple[str, ...]:
    """All leaf fields by dotted name; mappings appear once, without their free keys."""
    return tuple(_names(RunSpec, ""))


def _names(spec: type[Spec], prefix: str) -> list[str]:
    names = []
    for name, hint in _hints(spec).items():
        inner = _inner(hint)
        if _is_spec(inner):
            names += _names(inner, f"{prefix}{name}.")
        else:
            names.append(prefix + name)
    return names


def choices_of(dotted: str) -> list[str]:
    """The words a field accepts, where it names them; booleans are ``true`` and ``false``."""
    *parents, name = dotted.split(".")
    try:
        spec = _inner(kind_at(".".join(parents))) if parents else RunSpec
    except ConfigError:
        return []
    rule = rules_of(spec).get(name) if _is_spec(spec) else None
    if rule is None:
        return []
    return ["false", "true"] if rule.plain is bool else [str(choice) for choice in rule.choices]


def is_group(dotted: str) -> bool:
    """Whether a mapping of fields stands at this name."""
    return _is_spec(_inner(kind_at(dotted)))


def is_mapping(dotted: str) -> bool:
    """Whether a mapping of typed entries stands at this name."""
    if not dotted:
        return False
    hint = _inner(kind_at(dotted))
    return typing.get_origin(hint) is dict and _is_spec(_inner(typing.get_args(hint)[1]))


def _hints(spec: type[Spec]) -> dict[str, Any]:
    """The types of a spec's fields; words to choose from are text to OmegaConf."""
    return {name: _text_for_choices(hint) for name, hint in typing.get_type_hints(spec).items()}


def _text_for_choices(hint: Any) -> Any:
    inner = _inner(hint)
    if typing.get_origin(inner) is not typing.Literal:
        return hint
    return str if inner is hint else typing.Optional[str]  # noqa: UP045 - as OmegaConf writes it


def _inner(hint: Any) -> Any:
    """The type without ``| None``."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return next(a for a in typing.get_args(hint) if a is not type(None))
    return hint


def _is_spec(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Spec)
