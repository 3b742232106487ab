"""Declared fields: a dataclass says beside each name what the value may be, and is checked once, when it is made.

    algorithm: Literal["first_fit", "wrap"] = "first_fit"     one of these
    max_length: Positive                                      a whole number of at least 1
    max_buffer_size: Positive | None = 1000                   the same, or None
    betas: tuple[Share, Share]                                each of them; of a mapping each value
    fn: Callable[..., object]                                 any other annotation is not checked

The spec of an experiment, the options of a pipeline and the ops are declared in this way; `check` is their one check.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple, ParamSpec, TypeVar

from zephon.errors import ConfigError, nearest


class AtLeast(NamedTuple):
    """Beside a number in ``Annotated``: the smallest value."""

    least: float


class Above(NamedTuple):
    """Beside a number in ``Annotated``: it must be greater."""

    bound: float


class Below(NamedTuple):
    """Beside a number in ``Annotated``: it must be less."""

    bound: float


Positive = Annotated[int, AtLeast(1)]
NotNegative = Annotated[int, AtLeast(0)]
Seconds = Annotated[float, Above(0)]
Share = Annotated[float, AtLeast(0), Below(1)]

# Choices that several rooms share.
OnError = Literal["raise", "quarantine"]
Packing = Literal["first_fit", "best_fit", "wrap", "best_fit_wrap"]
SpecialTokens = Literal["bos_eos", "bos", "eos", "none", "tokenizer_default"]
RunnerName = Literal["threads", "process", "inline"]
LanesAllow = Literal["whole", "shared", "uneven"]

_TYPE_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "True or False"}


class Rule(NamedTuple):
    """What a field's annotation demands.

    Args:
        plain: int, float, str or bool where the value must be one, else None.
        choices: the values that it may have; empty where all are allowed.
        least: the smallest number.
        above, below: what a number must be greater, or less, than.
        optional: whether it may be None.
        held: the rule of what a list or mapping holds; None where it may hold anything.
    """

    plain: type | None
    choices: tuple[object, ...]
    least: float | None
    optional: bool
    above: float | None = None
    below: float | None = None
    held: Rule | None = None


def rule_of(hint: object) -> Rule:
    """Reads an annotation, with its ``Annotated`` and ``| None``."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    wanted = [option for option in options if option is not types.NoneType]
    optional = len(wanted) < len(options)
    if len(wanted) != 1:
        return Rule(None, (), None, optional)
    (inner,) = wanted
    least = above = below = None
    if typing.get_origin(inner) is Annotated:
        inner, *marks = typing.get_args(inner)
        least = next((mark.least for mark in marks if isinstance(mark, AtLeast)), None)
        above = next((mark.bound for mark in marks if isinstance(mark, Above)), None)
        below = next((mark.bound for mark in marks if isinstance(mark, Below)), None)
    if typing.get_origin(inner) is Literal:
        return Rule(None, typing.get_args(inner), None, optional)
    if typing.get_origin(inner) in (tuple, dict) and typing.get_args(inner):
        held = rule_of(typing.get_args(inner)[typing.get_origin(inner) is dict])
        return Rule(None, (), None, optional, held=held if held.plain is float else None)
    plain = inner if isinstance(inner, type) and inner in _TYPE_NAMES else None
    return Rule(plain, (), least, optional, above, below)


@functools.cache
def rules_of(kind: type) -> dict[str, Rule]:
    """The rule of each field of a dataclass."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: rule_of(hints[field.name]) for field in dataclasses.fields(kind)}


def check(declared: object, owner: str = "") -> None:
    """Compares the values of a dataclass with its annotations.

    Args:
        declared: an instance.
        owner: what the user called, for the message: ``shuffle`` gives ``shuffle(buffer_size=0) is below 1``.

    Raises:
        ConfigError: for the first value that its annotation excludes.
    """
    kind: type = type(declared)
    for name, rule in rules_of(kind).items():
        check_value(name, getattr(declared, name), rule, owner)


def check_value(name: str, value: object, rule: Rule, owner: str = "") -> None:
    """The same for one value."""
    if value is None and rule.optional:
        return
    shown = f"{owner}({name}={value!r})" if owner else f"{name}={value!r}"
    if rule.choices and value not in rule.choices:
        listed = ", ".join(map(repr, rule.choices))
        raise ConfigError(f"{shown} is not one of {listed}", remedy=nearest(str(value), map(str, rule.choices)))
    if rule.plain is not None and not _is(value, rule.plain):
        raise ConfigError(f"{shown} is not {_TYPE_NAMES[rule.plain]}", remedy=f"give {_TYPE_NAMES[rule.plain]}")
    if rule.plain is float and not math.isfinite(typing.cast(float, value)):
        raise ConfigError(f"{shown} is not a finite number", remedy="give a finite number")
    if rule.least is not None and typing.cast(float, value) < rule.least:
        raise ConfigError(f"{shown} is below {rule.least}", remedy=f"give at least {rule.least}")
    if rule.above is not None and typing.cast(float, value) <= rule.above:
        raise ConfigError(f"{shown} is not above {rule.above:g}", remedy=f"give more than {rule.above:g}")
    if rule.below is not None and typing.cast(float, value) >= rule.below:
        raise ConfigError(f"{shown} is not below {rule.below:g}", remedy=f"give less than {rule.below:g}")
    if rule.held is not None:
        items = value.items() if isinstance(value, Mapping) else enumerate(typing.cast(Sequence[object], value))
        for key, item in items:
            check_value(f"{name}[{key}]", item, rule.held, owner)


def _is(value: object, plain: type) -> bool:
    if plain is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, plain) and (plain is bool or not isinstance(value, bool))


def check_names(given: Iterable[str], known: Iterable[str], owner: str) -> None:
    """Raises ConfigError for the first name that is not known, with the nearest one that is."""
    names = list(known)
    for name in given:
        if name not in names:
            raise ConfigError(f"{owner} has no option {name!r}", remedy=nearest(name, names))


P = ParamSpec("P")
R = TypeVar("R")


def named_options(method: Callable[P, R]) -> Callable[P, R]:
    """Makes an unknown keyword of a method a ConfigError that names the nearest known one.

    Python's own TypeError names none. The signature stays the method's own, for editors and `inspect.signature`.
    """
    known = list(inspect.signature(method).parameters)[1:]

    @functools.wraps(method)
    def checked(*args: P.args, **options: P.kwargs) -> R:
        if not options.keys() <= known_names:
            check_names(options, known, method.__name__)
        return method(*args, **options)

    known_names = frozenset(known)
    return checked
