"""Words of the command line -> RunSpec, through Hydra's compose API.

``conf=exp1`` picks ``experiments/exp1.yaml`` from the shipped groups or from ``--config-dir``; ``conf=./my/exp.yaml`` is
any file. Everything is typed by the spec, also inside the user's file, so a misspelt key is refused wherever it stands;
all missing values are listed at once; nothing unresolved leaves this module. Precedence, weakest first: spec, groups,
experiment, command line. No directory is created and no logging is set up.
"""

from __future__ import annotations

import dataclasses
import math
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from zephon.errors import ConfigError, nearest
from zephon.launch.config.overrides import Word, below_mapping, check_option, is_file, split, to_hydra, to_tree
from zephon.launch.config.packaged import shipped
from zephon.launch.config.schema import kind_at, mirror
from zephon.launch.config.sources import sources
from zephon.spec.experiment import RunSpec
from zephon.world import World

_GROUP = "experiments"
_USER = "user_file"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Composed:
    """A composition and where it came from: the words, the groups' choices, and, when asked for, what is behind each value."""

    spec: RunSpec
    words: tuple[str, ...]
    choices: Mapping[str, str]
    sources: Mapping[str, str]


def compose(words: Sequence[str], *, config_dir: str | None = None, explain: bool = False) -> Composed:
    """Composes one experiment.

    Args:
        words: ``key=value`` words, ``conf=`` among them.
        config_dir: a directory with further groups or experiments, looked at before the shipped ones.
        explain: find the source of each value, which takes as long again.

    Raises:
        ConfigError: anything that cannot work, with the nearest known name where one was misspelt.
    """
    try:
        return _composed(words, config_dir, explain)
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        raise _translated(error) from error


def _composed(words: Sequence[str], config_dir: str | None, explain: bool) -> Composed:
    parsed = [split(word) for word in words]
    groups = groups_in(config_dir)
    experiment, stem = _experiment(parsed, groups, config_dir)
    rest = [word for word in parsed if word.key != "conf"]
    overrides = [f"{_GROUP}@_global_={experiment}"] if experiment else []
    overrides += [to_hydra(word, groups) for word in rest if not below_mapping(word)]
    how = (lambda hydra: sources(hydra, overrides, rest, groups)) if explain else None
    tree, choices, found = _compose(overrides, config_dir, how)
    if late := [to_tree(word) for word in rest if below_mapping(word)]:
        OmegaConf.set_struct(tree, False)
        tree.merge_with(*late)
    if OmegaConf.is_missing(tree, "name") and stem:
        tree.name, found["name"] = stem, "conf="
    spec = RunSpec.from_dict(_resolved(tree))
    check(spec)
    return Composed(spec=spec, words=tuple(words), choices=choices, sources=found)


def check(spec: RunSpec) -> None:
    """What no single field can say: names, ranges, divisions.

    Raises:
        ConfigError: see there.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", spec.name):
        raise ConfigError(
            f"name={spec.name!r} is not a run name",
            follows="it could not be the name of a directory and of a job everywhere",
            remedy="use 1 to 63 letters, digits, dots, hyphens and underscores, beginning with a letter or digit",
        )
    spec.check_nodes()
    elastic = spec.elastic
    ranks = spec.nodes * elastic.procs_per_node
    if ranks % spec.trainer.tensor_parallel:
        raise ConfigError(
            f"{ranks} ranks are not a multiple of trainer.tensor_parallel={spec.trainer.tensor_parallel}",
            follows="some ranks would belong to no model replica",
            remedy="change nodes, elastic.procs_per_node or trainer.tensor_parallel",
        )
    if not spec.data.datasets:
        raise ConfigError(
            "data.datasets is empty",
            follows="there would be nothing to train on",
            remedy="choose data=stdlib, or name one: data.datasets.NAME.path=URL",
        )
    World(spec.lanes.count, spec.global_batch_size, ranks // spec.trainer.tensor_parallel, spec.lanes.allow)


def groups_in(config_dir: str | None) -> dict[str, list[str]]:
    """The options of each config group, by the group's path, shipped and the user's own."""
    found: dict[str, set[str]] = {}
    for root in _roots(config_dir):
        for path in sorted(root.rglob("*.yaml")):
            group = path.parent.relative_to(root).as_posix()
            if group != ".":
                found.setdefault(group, set()).add(path.stem)
    return {group: sorted(options) for group, options in sorted(found.items())}


def option(group: str, name: str, config_dir: str | None) -> dict[str, Any]:
    """The plain fields that one option of a group sets, without composing anything.

    Raises:
        ConfigError: there is no such option.
    """
    check_option(group, name, groups_in(config_dir))
    path = next(found for root in _roots(config_dir) if (found := root / group / f"{name}.yaml").is_file())
    plain = OmegaConf.to_container(_mapping(path))
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _roots(config_dir: str | None) -> list[Path]:
    roots = [shipped("conf")]
    if config_dir is not None:
        if not Path(config_dir).is_dir():
            raise ConfigError(
                f"--config-dir {config_dir!r} is not a directory",
                follows="its configs could not be found",
                remedy="give an existing directory",
            )
        roots.insert(0, Path(config_dir).resolve())
    return roots


def _experiment(
    words: list[Word], groups: Mapping[str, Sequence[str]], config_dir: str | None
) -> tuple[str | None, str | None]:
    """The experiment's name for Hydra, and the default name of its run."""
    chosen = [word for word in words if word.key == "conf"]
    if not chosen:
        return None, None
    if len(chosen) > 1:
        raise ConfigError(
            f"conf is given {len(chosen)} times: {', '.join(word.text for word in chosen)}",
            follows="one run is one experiment",
            remedy="give it once; several experiments are a sweep: conf=A,B -m",
        )
    value = chosen[0].value or ""
    if is_file(value):
        return _load_user_file(Path(value).expanduser()), Path(value).stem
    beside = Path(config_dir) / f"{value}.yaml" if config_dir else None
    if beside is not None and value not in groups.get(_GROUP, ()) and beside.is_file():
        return _load_user_file(beside), value
    if value not in groups.get(_GROUP, ()):
        known = groups.get(_GROUP, [])
        raise ConfigError(
            f"conf={value}: there is no experiment of that name",
            follows="there is nothing to compose",
            remedy=f"{nearest(value, known, kind='experiments')}; a file is given as conf=./path/to/exp.yaml",
        )
    return value, value


def _load_user_file(path: Path) -> str:
    """Puts a file among the experiments, in memory."""
    if not path.is_file():
        raise ConfigError(
            f"conf={path}: the file does not exist",
            follows="there is nothing to compose",
            remedy="check the path; a shipped experiment is named without .yaml, for example conf=exp1",
        )
    node = _mapping(path)
    for key in _dotted(node):
        if key != "defaults" and not key.startswith(("defaults.", "hydra.")):
            _known(key, path)
    ConfigStore.instance().store(group=_GROUP, name=_USER, node=node, package="_global_", provider=str(path))
    return _USER


def _mapping(path: Path) -> DictConfig:
    """A file that holds a mapping.

    Raises:
        ConfigError: it is no YAML, or holds a list.
    """
    try:
        node = OmegaConf.load(path)
    except (yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} is not readable as YAML: {' '.join(str(error).split())}",
            follows="there is nothing to compose",
            remedy="correct the file at the named line",
        ) from error
    if not isinstance(node, DictConfig):
        raise ConfigError(
            f"{path} holds a list and not a mapping of fields",
            follows="there is nothing to compose",
            remedy="write field: value lines",
        )
    return node


def _known(key: str, path: Path) -> None:
    try:
        kind_at(key)
    except ConfigError as error:
        raise ConfigError(f"{error.what} (in {path})", follows=error.follows, remedy=error.remedy) from error


def _dotted(node: DictConfig, prefix: str = "") -> list[str]:
    names = []
    for key in node:
        if OmegaConf.is_dict(node._get_node(key)) and len(node._get_node(key)):
            names += _dotted(node._get_node(key), f"{prefix}{key}.")
        else:
            names.append(f"{prefix}{key}")
    return names


def _compose(
    overrides: list[str], config_dir: str | None, explain: Callable[[Hydra], dict[str, str]] | None
) -> tuple[DictConfig, dict[str, str], dict[str, str]]:
    ConfigStore.instance().store(name="zephon_schema", node=mirror(RunSpec))
    OmegaConf.register_new_resolver("auto_lanes", auto_lanes, replace=True)
    roots = _roots(config_dir)
    search = create_config_search_path(f"file://{roots[-1]}")
    for root in roots[:-1]:
        search.prepend(provider="--config-dir", path=f"file://{root}")
    GlobalHydra.instance().clear()
    try:
        hydra = Hydra.create_main_hydra2("zephon", search)
        tree = hydra_compose("config", overrides, return_hydra_config=True)
        choices = {str(k): str(v) for k, v in tree.hydra.runtime.choices.items() if not str(k).startswith("hydra/") and v}
        OmegaConf.set_struct(tree, False)
        tree.pop("hydra")
        OmegaConf.set_struct(tree, True)
        return tree, choices, explain(hydra) if explain else {}
    finally:
        GlobalHydra.instance().clear()


def _translated(error: Exception) -> ConfigError:
    """Hydra's and OmegaConf's errors in three parts, with the nearest key where one was unknown."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, ConfigError):  # raised by a resolver of ours
            return link
        link = link.__cause__ or link.__context__
    cause: BaseException = error
    while cause.__cause__ is not None and not getattr(cause, "full_key", None):
        cause = cause.__cause__
    key = getattr(cause, "full_key", None)
    text = str(cause).split("\n")[0] if key else " ".join(str(error).split())
    if key:
        try:
            mapping = typing.get_origin(kind_at(str(key))) is dict
        except ConfigError as unknown:
            return unknown
        if mapping:
            return ConfigError(text, follows="the run could not be built", remedy=f"set its entries: {key}.NAME=VALUE")
        return ConfigError(
            f"{key}: {text}",
            follows="the run could not be built",
            remedy=f"correct {key} where it is set, or set it: {key}=VALUE",
        )
    return ConfigError(text, follows="the run could not be composed", remedy="correct the named config or argument")


def _resolved(tree: DictConfig) -> dict[str, Any]:
    """Plain containers with nothing open.

    Raises:
        ConfigError: naming every value that is missing or cannot be resolved.
    """
    problems = dict.fromkeys(sorted(OmegaConf.missing_keys(tree)), "not given")
    _unresolvable(tree, "", problems)
    if problems:
        lines = "; ".join(f"{name} ({why})" for name, why in problems.items())
        first = next(iter(problems))
        raise ConfigError(
            f"{len(problems)} value{'s' if len(problems) > 1 else ''} missing: {lines}",
            follows="the run would fail when it first needs one of them",
            remedy=f"set each, for example {first}=VALUE"
            + ("" if "name" not in problems else ", or choose an experiment: conf=exp1"),
        )
    plain = OmegaConf.to_container(tree, resolve=True, enum_to_str=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _unresolvable(node: Any, prefix: str, problems: dict[str, str]) -> None:
    if not isinstance(node, DictConfig):
        return
    for key in node:
        name = f"{prefix}{key}"
        if OmegaConf.is_missing(node, key):
            continue
        try:
            value = node[key]
        except OmegaConfBaseException as error:
            problems[name] = str(error).split("\n")[0]
            continue
        _unresolvable(value, f"{name}.", problems)


def auto_lanes(nodes_min: int, nodes_max: int, procs: int, tensor: int, batch: int) -> int:
    """The smallest number of lanes that every possible data-parallel size of the range divides.

    Raises:
        ConfigError: the global batch is not a multiple of it.
    """
    sizes = [n * procs // tensor for n in range(nodes_min, nodes_max + 1) if n * procs % tensor == 0]
    lanes = math.lcm(*sizes) if sizes else 1
    if batch % lanes:
        raise ConfigError(
            f"lanes=auto gives {lanes} lanes for {nodes_min}..{nodes_max} nodes, which do not divide global_batch_size={batch}",
            follows="lanes would deliver different numbers of sequences in a step",
            remedy=f"narrow elastic.nodes_min..nodes_max, or use a global batch that is a multiple of {lanes}",
        )
    return lanes
