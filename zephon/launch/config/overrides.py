"""What is typed after the verb: ``key=value`` words, taken plainly.

Hydra's grammar gives meaning to ``= , @ ' {`` inside values. A value for a text field is quoted here, so that
``data.datasets.web.path=out/epoch=9-step=80.jsonl`` means what it says; commas make a sweep only with ``-m``. A word's
key is checked against the spec before anything is composed, and the refusal names the nearest known key.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from zephon.errors import ConfigError, nearest
from zephon.launch.config.schema import is_group, is_mapping, kind_at

_WORD = re.compile(r"(?P<prefix>\+\+|\+|~|)(?P<key>[\w./@:-]+?)(=(?P<value>.*))?", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Word:
    """One word of the command line."""

    text: str
    prefix: str
    key: str
    value: str | None


def split(text: str) -> Word:
    """Splits at the first ``=``.

    Raises:
        ConfigError: it is not of the form ``key=value``.
    """
    match = _WORD.fullmatch(text)
    if match is None or (match["value"] is None and match["prefix"] != "~"):
        raise ConfigError(
            f"the argument {text!r} is not of the form key=value",
            follows="it would be ignored",
            remedy="write key=value without spaces around =, and quote the whole word for the shell where it holds spaces",
        )
    return Word(text, match["prefix"], match["key"], match["value"])


def to_hydra(word: Word, groups: Mapping[str, Sequence[str]], *, sweep: bool = False) -> str:
    """The word in Hydra's grammar.

    Args:
        word: what was typed.
        groups: options of each config group, by the group's path.
        sweep: whether commas separate alternatives.

    Raises:
        ConfigError: unknown key, unknown option of a group, a scalar where a group stands, or a value Hydra cannot read.
    """
    if word.prefix in ("+", "~") or "@" in word.key or word.value is None:
        return _readable(word, word.text, sweep)
    key = word.key.replace("/", ".")
    if word.key in groups or "/" in word.key:
        group = word.key
        for option in word.value.split(",") if sweep else [word.value]:
            check_option(group, option, groups)
        return f"{group}={word.value}"
    if is_group(key):
        raise _scalar_for_group(word, key)
    if sweep and "," in word.value:
        return _readable(word, f"{_force(key)}{key}={word.value}", sweep)
    return _readable(word, f"{_force(key)}{key}={_value(kind_at(key), word.value)}", sweep)


def check_option(group: str, option: str, groups: Mapping[str, Sequence[str]]) -> None:
    """Raises ConfigError: there is no such group, or no such option of it."""
    known = groups.get(group)
    if known is None:
        raise ConfigError(
            f"{group!r} is not a config group",
            follows="nothing could be chosen from it",
            remedy=nearest(group, groups),
        )
    if option not in known and option != "null":
        raise ConfigError(
            f"{group}={option}: the group has no such option",
            follows="there is nothing to compose",
            remedy=nearest(option, known, kind="options")
            + (f"; a single field is set by {group}.FIELD=VALUE" if option.isdigit() else ""),
        )


def _scalar_for_group(word: Word, key: str) -> ConfigError:
    return ConfigError(
        f"{word.text!r} gives a single value where a mapping of fields stands",
        follows="the whole mapping would be replaced by one word",
        remedy=f"set its fields: {key}.FIELD=VALUE",
    )


def _force(key: str) -> str:
    """Keys below a free mapping may be new, also when it is given as a whole; everything else must exist."""
    parts = key.split(".")
    for depth in range(1, len(parts) + 1):
        kind = kind_at(".".join(parts[:depth]))
        if typing.get_origin(kind) is dict or kind is Any:
            return "++"
        if typing.get_origin(kind) in (types.UnionType, typing.Union) and any(
            typing.get_origin(a) is dict for a in typing.get_args(kind)
        ):
            return "++"
    return ""


def below_mapping(word: Word) -> bool:
    """Whether the word sets a field of an entry of a typed mapping, such as ``data.datasets.NAME.path``.

    OmegaConf's own update cannot make a new entry of a typed mapping, a merge can: ``to_tree`` gives what to merge.
    """
    if word.prefix or "@" in word.key or "/" in word.key or word.value is None:
        return False
    parts = word.key.split(".")
    whole = word.value.lstrip().startswith("{")  # as in data.datasets={web: {path: x}}
    return any(is_mapping(".".join(parts[:depth])) for depth in range(1, len(parts) + whole))


def to_tree(word: Word) -> dict[str, Any]:
    """The word as nested mappings, its value read by the field's type."""
    kind = kind_at(word.key)
    text = _readable(word, f"key={_value(kind, word.value or '')}", False)
    tree: Any = OverridesParser.create().parse_override(text).value()
    tree = tree.text if hasattr(tree, "text") else tree
    for part in reversed(word.key.split(".")):
        tree = {part: tree}
    assert isinstance(tree, dict)
    return tree


def _value(kind: Any, text: str) -> str:
    inner = typing.get_args(kind) if typing.get_origin(kind) in (types.UnionType, typing.Union) else (kind,)
    if type(None) in inner and text in ("null", "None", "~"):
        return "null"
    if str in inner:
        return text if _quoted(text) else quote(text)
    if kind is Any and not _parses(f"key={text}"):
        return quote(text)
    return text


def quote(text: str) -> str:
    """The text as one quoted word of Hydra's grammar."""
    # Backslashes matter to the grammar only where they stand before a quote or at the end.
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


def _readable(word: Word, text: str, sweep: bool) -> str:
    try:
        parsed = OverridesParser.create().parse_override(text)
    except HydraException as error:
        raise _unreadable(word) from error
    if parsed.is_sweep_override() and not sweep:
        raise ConfigError(
            f"{word.text!r} holds several values separated by commas",
            follows="one run cannot have several values in one field",
            remedy=f"add -m for a sweep, or write a list as {word.key}=[A,B]",
        )
    return text


def _unreadable(word: Word) -> ConfigError:
    value = word.value or ""
    culprit = next((c for c in value if c in "=,@%#{}()[]'\"&;"), None)
    return ConfigError(
        f"the value of {word.text!r} cannot be read" + (f": it holds {culprit!r}" if culprit else ""),
        follows="another value than the typed one would be used",
        remedy=f"quote it for both the shell and the grammar: \"{word.key}='{value}'\"",
    )


def is_file(value: str) -> bool:
    """Whether ``conf=VALUE`` means a file and not a name."""
    return value.endswith((".yaml", ".yml")) or value.startswith((".", "/", "~")) or Path(value).is_file()
