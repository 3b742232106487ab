"""Where each value of a composition comes from: Hydra's own list of what it merges, walked in its order; the last one wins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from zephon.launch.config.overrides import Override, to_tree

DEFAULT = "default"
TYPED = "command line"
PRIMARY = "zephon_config"  # names in Hydra's store
SCHEMA = "zephon_schema"


def sources(for_hydra: list[str], fields: Iterable[Override], groups: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Source by dotted name: a config file, or the command line; what is missing here is the spec's default.

    Args:
        for_hydra: the overrides of the composition in Hydra's grammar; Hydra is initialized.
        fields: the overrides as they were typed.
        groups: the options of each config group.
    """
    origins: dict[str, str] = {}
    for merged in GlobalHydra.instance().config_loader().compute_defaults_list(PRIMARY, for_hydra, RunMode.RUN).defaults:
        path = str(merged.config_path)
        config = _config(path) if not path.startswith("hydra") and path != SCHEMA else None
        if config is None:
            continue
        # A user's file is in Hydra's store under a name of ours; its provider is its path.
        label = str(config.provider) if str(config.path).startswith("structured") else _file(str(config.path), path)
        prefix = f"{merged.package}." if merged.package else ""
        origins.update(dict.fromkeys((prefix + name for name in leaves(config.config)), label))
    for override in fields:
        if override.key not in groups and override.value is not None:
            whole = override.is_whole and not override.prefix
            names = leaves(OmegaConf.create(to_tree(override))) if whole else [override.key.replace("/", ".")]
            origins.update(dict.fromkeys(names, TYPED))
    return origins


def _config(path: str) -> ConfigResult | None:
    """The first config of this path among Hydra's sources."""
    for source in GlobalHydra.instance().config_loader().get_sources():
        if source.is_config(path):
            loaded: ConfigResult = source.load_config(path)
            return loaded
    return None


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


def annotated(tree: Mapping[str, object], origins: Mapping[str, str], *, width: int = 44) -> str:
    """The tree as YAML that composes again, each value with its source in a comment."""
    return "\n".join(_lines(tree, origins, "", width))


def _lines(tree: Mapping[str, object], origins: Mapping[str, str], prefix: str, width: int) -> list[str]:
    lines = []
    for key, value in tree.items():
        name, indent = f"{prefix}{key}", "  " * prefix.count(".")
        if isinstance(value, Mapping) and value:
            lines += [f"{indent}{key}:", *_lines(value, origins, name + ".", width)]
        else:
            text = yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("...\n").strip()
            lines.append(f"{indent}{key}: {text}".ljust(width) + f"  # {_source(name, origins)}")
    return lines


def _source(name: str, origins: Mapping[str, str]) -> str:
    """Of the name itself, or of the mapping that was given as a whole."""
    while name not in origins and "." in name:
        name = name.rpartition(".")[0]
    return origins.get(name, DEFAULT)


def _file(root: str, path: str) -> str:
    folder = root.removeprefix("file://").rstrip("/").rsplit("/", 1)[-1]
    return f"{folder}/{path}.yaml"
