"""``key=value`` arguments of the command line, whose values are taken plainly.

Hydra's grammar gives meaning to ``= , @ ' {`` inside values. A value for a text field is quoted here, so that
``data.datasets.web.path=out/epoch=9-step=80.jsonl`` means what it says; commas make a sweep only with ``-m``. The key is
checked against the spec before anything is composed, and the refusal names the nearest known key.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from hydra.errors import HydraException

from zephon.errors import ConfigError, nearest
from zephon.launch.config.schema import is_group, is_mapping, kind_at, takes_none, without_none

_OVERRIDE = re.compile(r"(?P<prefix>\+\+|\+|~|)(?P<key>[\w./@:-]+?)(=(?P<value>.*))?", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Override:
    """One ``key=value`` argument; ``prefix`` is Hydra's ``+``, ``++`` or ``~``, ``value`` is None in ``~key``."""

    text: str
    prefix: str
    key: str
    value: str | None

    @property
    def is_whole(self) -> bool:
        """Whether it gives a mapping as a whole, as in ``data.datasets={web: {path: x}}``."""
        return self.value is not None and self.value.lstrip().startswith("{")


def split(text: str) -> Override:
    """Splits at the first ``=``.

    Raises:
        ConfigError: it is not of the form ``key=value``.
    """
    match = _OVERRIDE.fullmatch(text)
    if match is None or (match["value"] is None and match["prefix"] != "~"):
        raise ConfigError(
            f"the argument {text!r} is not of the form key=value",
            follows="it would be ignored",
            remedy="write key=value without spaces around =, and quote all of it for the shell where it holds spaces",
        )
    return Override(text, match["prefix"], match["key"], match["value"])


def to_hydra(override: Override, groups: Mapping[str, Sequence[str]]) -> str:
    """The override in Hydra's grammar.

    Args:
        override: what was typed.
        groups: options of each config group, by the group's path.

    Raises:
        ConfigError: an unknown key, an unknown option of a group, a single value for a mapping of fields, or a value that
            Hydra cannot read.
    """
    if override.prefix in ("+", "~") or "@" in override.key or override.value is None:
        return _readable(override, override.text)
    if override.key in groups or "/" in override.key:
        check_option(override.key, override.value, groups)
        return f"{override.key}={override.value}"
    if is_group(override.key):
        raise ConfigError(
            f"{override.text!r} gives a single value for a mapping of fields",
            follows="the whole mapping would be replaced by one value",
            remedy=f"set its fields: {override.key}.FIELD=VALUE",
        )
    return _readable(override, f"{_force(override.key)}{override.key}={_value(kind_at(override.key), override.value)}")


def check_option(group: str, option: str, groups: Mapping[str, Sequence[str]]) -> None:
    """Refuses a choice that cannot be made.

    Raises:
        ConfigError: there is no such group, or no such option of it.
    """
    known = groups.get(group)
    if known is None:
        raise ConfigError(f"{group!r} is not a config group", remedy=nearest(group, groups))
    if option not in known and option != "null":
        raise ConfigError(
            f"{group}={option}: the group has no such option",
            remedy=nearest(option, known, kind="options")
            + (f"; a single field is set by {group}.FIELD=VALUE" if option.isdigit() else ""),
        )


def _force(key: str) -> str:
    """Keys of a free mapping may be new, also when it is given as a whole; every other key must exist."""
    parts = key.split(".")
    kinds = [without_none(kind_at(".".join(parts[:depth]))) for depth in range(1, len(parts) + 1)]
    return "++" if any(kind is Any or typing.get_origin(kind) is dict for kind in kinds) else ""


def below_mapping(override: Override) -> bool:
    """Whether it sets a field of an entry of a typed mapping, such as ``data.datasets.NAME.path``.

    OmegaConf's own update cannot make a new entry of a typed mapping, a merge can: ``to_tree`` gives what to merge.
    """
    if override.prefix or "@" in override.key or "/" in override.key or override.value is None:
        return False
    parts = override.key.split(".")
    return any(is_mapping(".".join(parts[:depth])) for depth in range(1, len(parts) + override.is_whole))


def to_tree(override: Override) -> dict[str, object]:
    """The override as nested mappings, its value read by the field's type."""
    text = _readable(override, f"key={_value(kind_at(override.key), override.value or '')}")
    value: object = OverridesParser.create().parse_override(text).value()
    if isinstance(value, QuotedString):
        value = value.text
    _check_names(override, value)
    *above, last = override.key.split(".")
    tree = {last: value}
    for part in reversed(above):
        tree = {part: tree}
    return tree


def _check_names(override: Override, value: object) -> None:
    """Refuses names in a mapping that the grammar reads as another kind of value, such as 1e3 or true."""
    for name, inner in value.items() if isinstance(value, Mapping) else ():
        if not isinstance(name, (str, QuotedString)):
            raise ConfigError(
                f"a name in {override.text!r} is read as {name!r}, which is no text",
                follows="the entry would have another name",
                remedy=f"set its fields one by one: {override.key}.NAME.FIELD=VALUE",
            )
        _check_names(override, inner)


def check_once(overrides: Sequence[Override]) -> None:
    """Raises ConfigError: a key or group is given twice, of which one would have no effect."""
    seen: dict[str, Override] = {}
    for override in overrides:
        before = seen.setdefault(f"{override.prefix == '~'}{override.key}", override)
        if before is not override:
            raise ConfigError(
                f"{override.key} is given twice: {before.text} and {override.text}",
                follows="one of them would have no effect",
                remedy="leave one of them out"
                + (f"; {override.key}=A,B -m makes a run of each" if override.prefix != "~" else ""),
            )


def _value(kind: object, text: str) -> str:
    """The text in Hydra's grammar: quoted where the field takes text, or where the grammar could not read it."""
    if takes_none(kind) and text in ("null", "None", "~"):
        return "null"
    if without_none(kind) is str:
        return text if _quoted(text) else quote(text)
    if kind is Any and not _parses(f"key={text}"):
        return quote(text)
    return text


def quote(text: str) -> str:
    """The text as one quoted value of Hydra's grammar."""
    # Backslashes matter to the grammar only before a quote and at the end.
    escaped = re.sub(r"(\\*)'", lambda m: m[1] * 2 + r"\'", text)
    escaped = re.sub(r"(\\+)$", lambda m: m[1] * 2, escaped)
    return f"'{escaped}'"


def _quoted(text: str) -> bool:
    return len(text) >= 2 and text[0] == text[-1] and text[0] in "'\""


def _parses(text: str) -> bool:
    try:
        parsed = OverridesParser.create().parse_override(text)
    except HydraException:
        return False
    return not parsed.is_sweep_override()


def _readable(override: Override, text: str) -> str:
    """The text, once Hydra's grammar has read it as a single value."""
    try:
        parsed = OverridesParser.create().parse_override(text)
    except HydraException as error:
        raise _unreadable(override) from error
    if parsed.is_sweep_override():
        raise ConfigError(
            f"{override.text!r} holds several values separated by commas",
            follows="one run cannot have several values in one field",
            remedy=f"add -m for a sweep, or write a list as {override.key}=[A,B]",
        )
    return text


def _unreadable(override: Override) -> ConfigError:
    value = override.value or ""
    culprit = next((c for c in value if c in "=,@%#{}()[]'\"&;"), None)
    return ConfigError(
        f"the value of {override.text!r} cannot be read" + (f": it holds {culprit!r}" if culprit else ""),
        follows="another value than the typed one would be used",
        remedy=f"quote it for both the shell and the grammar: \"{override.key}='{value}'\"",
    )


def alternatives(text: str) -> list[str]:
    """The values of one argument of a sweep, each as an argument: ``a=1,2``, ``a=range(1,4)``, ``a=choice(x,y)``.

    An argument with a single value is returned as it was typed.
    """
    override = split(text)
    try:
        parsed = OverridesParser.create().parse_override(text)
        values = list(parsed.sweep_string_iterator()) if parsed.is_sweep_override() else []
    except HydraException:  # the grammar cannot read a value that is taken plainly here, such as p=1,p=2
        parts = (override.value or "").split(",")
        values = parts if len(parts) > 1 else []
    return [f"{override.prefix}{override.key}={value}" for value in values] or [text]


def is_file(value: str) -> bool:
    """Whether ``conf=VALUE`` means a file and not a name."""
    return value.endswith((".yaml", ".yml")) or value.startswith((".", "/", "~")) or Path(value).is_file()
