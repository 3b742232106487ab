"""What Hydra would ignore in a config file: refused with the file, the line and the nearest word.

defaults:
  - override /model: small
  - override /model: large       line 3: the group is chosen twice, and one choice has no effect
  - optioal /x: y                line 4: the word means nothing
hydra: {sweeper: ...}            line 5: nothing reads it
data: {datasets: {no: ...}}      line 6: YAML reads the name as False
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from zephon.errors import ConfigError, nearest

_WORDS = ("override", "optional")
_TEXT, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"


def check_file(path: Path) -> None:
    """Raises ConfigError: the file has something that would have no effect, or another one than it says."""
    root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        return
    for key, value in root.value:
        if key.value == "hydra":
            raise _refused(
                path,
                key,
                "hydra: nothing reads these settings here",
                remedy="leave them out; a sweep is KEY=A,B -m on the command line, a folder of configs is --config-dir",
            )
        if key.value == "defaults" and isinstance(value, yaml.SequenceNode):
            _check_defaults(path, value)
        else:
            _check_names(path, key, value)


def _check_defaults(path: Path, defaults: yaml.SequenceNode) -> None:
    chosen: dict[str, int] = {}
    for node in _entries(defaults):
        *words, group = str(node.value).split() or [""]
        for word in words:
            if word not in _WORDS:
                raise _refused(
                    path, node, f"{node.value!r}: {word!r} is no word of a defaults list", remedy=nearest(word, _WORDS)
                )
        if (before := chosen.setdefault(group.lstrip("/"), _line(node))) != _line(node):
            raise _refused(
                path, node, f"the group {group} is chosen a second time, after line {before}", remedy="leave one of them out"
            )


def _entries(defaults: yaml.SequenceNode) -> Iterator[yaml.ScalarNode]:
    """The key of each ``group: option``; an entry without an option is a file of its own."""
    for item in defaults.value:
        if isinstance(item, yaml.MappingNode):
            yield from (key for key, _ in item.value)


def _check_names(path: Path, key: yaml.Node, value: yaml.Node) -> None:
    if isinstance(key, yaml.ScalarNode) and key.tag not in (_TEXT, _MERGE):
        read = yaml.SafeLoader("").construct_object(key)
        raise _refused(
            path, key, f"YAML reads the name {key.value} as {read!r}, which is no text", remedy=f"quote it: '{key.value}'"
        )
    if isinstance(value, yaml.MappingNode):
        for inner, below in value.value:
            _check_names(path, inner, below)


def _refused(path: Path, node: yaml.Node, what: str, *, remedy: str) -> ConfigError:
    return ConfigError(f"{path}, line {_line(node)}: {what}", follows="the setting would have no effect", remedy=remedy)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
