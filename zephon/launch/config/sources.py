"""Where each value of a composition comes from: Hydra's own list of what it merges, walked in its order; the last one wins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml
from hydra._internal.hydra import Hydra
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from zephon.launch.config.overrides import Word, to_tree

DEFAULT = "default"
TYPED = "command line"


def sources(hydra: Hydra, overrides: list[str], words: Iterable[Word], groups: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Source by dotted name: a config file, or the command line; what is missing here is the spec's default."""
    loader = hydra.config_loader
    found: dict[str, str] = {}
    for one in loader.compute_defaults_list("config", overrides, RunMode.RUN).defaults:
        path = str(one.config_path)
        loaded = loader.repository.load_config(path) if not path.startswith("hydra") else None
        if loaded is None or path == "zephon_schema":
            continue
        # A user's file is in Hydra's store under a name of ours; its provider is its path.
        label = str(loaded.provider) if str(loaded.path).startswith("structured") else _file(str(loaded.path), path)
        prefix = f"{one.package}." if one.package else ""
        found.update(dict.fromkeys((prefix + name for name in leaves(loaded.config)), label))
    for word in words:
        if word.key not in groups and word.value is not None:
            given = word.value.lstrip().startswith("{") and not word.prefix
            names = leaves(OmegaConf.create(to_tree(word))) if given else [word.key.replace("/", ".")]
            found.update(dict.fromkeys(names, TYPED))
    return found


def leaves(node: DictConfig, prefix: str = "") -> list[str]:
    """Dotted names of all that is given in a config."""
    names = []
    for key in node:
        if OmegaConf.is_missing(node, key):
            continue
        child = node._get_node(key)
        if isinstance(child, DictConfig) and len(child):
            names += leaves(child, f"{prefix}{key}.")
        else:
            names.append(f"{prefix}{key}")
    return names


def annotated(tree: Mapping[str, Any], found: Mapping[str, str], *, width: int = 44) -> str:
    """The tree as YAML that composes again, each value with its source behind it."""
    return "\n".join(_lines(tree, found, "", width))


def _lines(tree: Mapping[str, Any], found: Mapping[str, str], prefix: str, width: int) -> list[str]:
    lines = []
    for key, value in tree.items():
        name, indent = f"{prefix}{key}", "  " * prefix.count(".")
        if isinstance(value, Mapping) and value:
            lines += [f"{indent}{key}:", *_lines(value, found, name + ".", width)]
        else:
            text = yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("...\n").strip()
            lines.append(f"{indent}{key}: {text}".ljust(width) + f"  # {_source(name, found)}")
    return lines


def _source(name: str, found: Mapping[str, str]) -> str:
    """Of the name itself, or of the mapping that was given as a whole."""
    while name not in found and "." in name:
        name = name.rpartition(".")[0]
    return found.get(name, DEFAULT)


def _file(root: str, path: str) -> str:
    folder = root.removeprefix("file://").rstrip("/").rsplit("/", 1)[-1]
    return f"{folder}/{path}.yaml"
