"""Arguments of the command line -> RunSpec, through Hydra's compose API.

``conf=exp1`` picks ``experiments/exp1.yaml`` from the packaged groups or from ``--config-dir``; ``conf=./my/exp.yaml`` is
any file. Everything is typed by the spec, also inside the user's file, so a misspelt key is refused wherever it is;
all missing values are listed at once; nothing unresolved leaves this module. Precedence, weakest first: spec, groups,
experiment, command line. No directory is created and no logging is set up.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from zephon.errors import ConfigError, nearest
from zephon.launch.config.files import check_file
from zephon.launch.config.overrides import (
    Override,
    below_mapping,
    check_once,
    check_option,
    is_file,
    quote,
    split,
    to_hydra,
    to_tree,
)
from zephon.launch.config.packaged import config_roots, groups_in
from zephon.launch.config.schema import kind_at, mirror
from zephon.launch.config.sources import PRIMARY, SCHEMA, leaves, sources
from zephon.spec.experiment import RunSpec
from zephon.world import World

_GROUP = "experiments"
_USER = "user_file"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Composed:
    """A composition and where it came from: the arguments, the groups' choices, and, when asked for, each value's source."""

    spec: RunSpec
    overrides: tuple[str, ...]
    choices: Mapping[str, str]
    sources: Mapping[str, str]


def compose(overrides: Sequence[str], *, config_dir: str | None = None, explain: bool = False) -> Composed:
    """Composes one experiment.

    Args:
        overrides: ``key=value`` arguments, ``conf=`` among them.
        config_dir: a directory with further groups or experiments, which come before the packaged ones.
        explain: find the source of each value, which takes as long again.

    Raises:
        ConfigError: anything that cannot work, with the nearest known name where one was misspelt.
    """
    try:
        return _composed(overrides, config_dir, explain)
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        raise _translated(error) from error


def _composed(typed: Sequence[str], config_dir: str | None, explain: bool) -> Composed:
    parsed = [split(text) for text in typed]
    groups = groups_in(config_dir)
    check_once([override for override in parsed if override.key != "conf"])
    experiment, stem = _experiment(parsed, groups, config_dir)
    fields = [override for override in parsed if override.key != "conf"]
    for_hydra = [f"{_GROUP}@_global_={experiment}"] if experiment else []
    for_hydra += [to_hydra(override, groups) for override in fields if not below_mapping(override)]
    named = {override.key: override.value or "" for override in fields} | {_GROUP: experiment or ""}
    for path in _own_files(named, config_dir):  # before Hydra trips over them
        check_file(path)
    with _hydra(config_roots(config_dir)) as search_path:
        for_hydra += search_path
        tree, choices = _tree(for_hydra)
        for path in _own_files(choices, config_dir):
            check_file(path)
        origins = sources(for_hydra, fields, groups) if explain else {}
    if entries := [to_tree(override) for override in fields if below_mapping(override)]:
        OmegaConf.set_struct(tree, False)
        tree.merge_with(*entries)
    if OmegaConf.is_missing(tree, "name") and stem:
        tree.name, origins["name"] = stem, "conf="
    spec = RunSpec.from_dict(_resolved(tree))
    check(spec)
    return Composed(spec=spec, overrides=tuple(typed), choices=choices, sources=origins)


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
    if spec.data.phases is not None or spec.data.decisions is not None or spec.data.controller.rule != "none":
        from zephon.work.curriculum import phases_of  # the loader's arithmetic: only a curriculum needs it here

        phases_of(spec)
    World(spec.lanes.count, spec.global_batch_size, ranks // spec.trainer.tensor_parallel, spec.lanes.allow)


def option(group: str, name: str, config_dir: str | None) -> dict[str, object]:
    """The plain fields that one option of a group sets, without composing anything.

    Raises:
        ConfigError: there is no such option.
    """
    check_option(group, name, groups_in(config_dir))
    files = (root / group / f"{name}.yaml" for root in config_roots(config_dir))
    return _plain(_mapping(next(path for path in files if path.is_file())))


def experiment_fields(conf: str, config_dir: str | None = None) -> dict[str, object]:
    """What an experiment's own file says, without composing anything; ``defaults`` is the list of its choices.

    Raises:
        ConfigError: there is no such experiment, or its file is no mapping.
    """
    if not is_file(conf):
        return option(_GROUP, conf, config_dir)
    path = Path(conf).expanduser()
    if not path.is_file():
        raise _no_such_file(path)
    return _plain(_mapping(path))


def _experiment(
    overrides: list[Override], groups: Mapping[str, Sequence[str]], config_dir: str | None
) -> tuple[str | None, str | None]:
    """The experiment's name for Hydra, and the default name of its run."""
    chosen = [override for override in overrides if override.key == "conf"]
    if not chosen:
        return None, None
    if len(chosen) > 1:
        raise ConfigError(
            f"conf is given {len(chosen)} times: {', '.join(override.text for override in chosen)}",
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
            remedy=f"{nearest(value, known, kind='experiments')}; a file is given as conf=./path/to/exp.yaml",
        )
    return value, value


def _load_user_file(path: Path) -> str:
    """Puts a file among the experiments, in memory."""
    if not path.is_file():
        raise _no_such_file(path)
    node = _mapping(path)
    check_file(path)
    for key in leaves(node):
        if key != "defaults" and not key.startswith("defaults."):
            _known(key, path)
    ConfigStore.instance().store(group=_GROUP, name=_USER, node=node, package="_global_", provider=str(path))
    return _USER


def _no_such_file(path: Path) -> ConfigError:
    return ConfigError(
        f"conf={path}: the file does not exist",
        remedy="check the path; a packaged experiment is named without .yaml, for example conf=exp1",
    )


def _own_files(choices: Mapping[str, str], config_dir: str | None) -> list[Path]:
    """The files in the user's own directory that were chosen."""
    if config_dir is None:
        return []
    chosen = [Path(config_dir) / group.partition("@")[0] / f"{option}.yaml" for group, option in choices.items()]
    return [path for path in chosen if path.is_file()]


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
            remedy="correct the file at the named line",
        ) from error
    if not isinstance(node, DictConfig):
        raise ConfigError(
            f"{path} holds a list and not a mapping of fields",
            remedy="write field: value lines",
        )
    return node


def _known(key: str, path: Path) -> None:
    try:
        kind_at(key)
    except ConfigError as error:
        raise ConfigError(f"{error.what} (in {path})", follows=error.follows, remedy=error.remedy) from error


@contextlib.contextmanager
def _hydra(roots: Sequence[Path]) -> Iterator[list[str]]:
    """Hydra with our schema and these directories; yields the override that makes it search all of them."""
    ConfigStore.instance().store(name=SCHEMA, node=mirror(RunSpec))
    OmegaConf.register_new_resolver("auto_lanes", auto_lanes, replace=True)
    # Hydra reads the primary config before it extends the search path, so it gets ours from its store.
    ConfigStore.instance().store(name=PRIMARY, node=_mapping(roots[-1] / "config.yaml"), provider="conf/config.yaml")
    first, *others = (str(root) for root in roots)
    with initialize_config_dir(first, job_name="zephon", version_base=None):
        yield [f"hydra.searchpath=[{','.join(quote(f'file://{root}') for root in others)}]"]


def _tree(overrides: list[str]) -> tuple[DictConfig, dict[str, str]]:
    """What Hydra composes, and the choice of each group."""
    tree = hydra_compose(PRIMARY, overrides, return_hydra_config=True)
    choices = {str(k): str(v) for k, v in tree.hydra.runtime.choices.items() if not str(k).startswith("hydra/") and v}
    OmegaConf.set_struct(tree, False)
    tree.pop("hydra")
    OmegaConf.set_struct(tree, True)
    return tree, choices


def _translated(error: Exception) -> ConfigError:
    """Hydra's or OmegaConf's error in three parts, about the field that it names."""
    for cause in _causes(error):
        if isinstance(cause, ConfigError):  # raised by a resolver of ours
            return cause
    for cause in _causes(error):
        if isinstance(cause, OmegaConfBaseException) and cause.full_key:
            return _about_field(str(cause.full_key), str(cause).partition("\n")[0])
    return ConfigError(" ".join(str(error).split()), remedy="correct the named config or argument")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, then what it was raised from, then what that was raised from, and so on."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _about_field(key: str, problem: str) -> ConfigError:
    """The error about one field; where there is no such field, that is the error."""
    try:
        kind = kind_at(key)
    except ConfigError as unknown:
        return unknown
    if typing.get_origin(kind) is dict:
        return ConfigError(problem, remedy=f"set its entries: {key}.NAME=VALUE")
    return ConfigError(f"{key}: {problem}", remedy=f"correct {key} where it is set, or set it: {key}=VALUE")


def _resolved(tree: DictConfig) -> dict[str, object]:
    """Plain containers with nothing open.

    Raises:
        ConfigError: naming every value that is missing or cannot be resolved.
    """
    problems = dict.fromkeys(sorted(OmegaConf.missing_keys(tree)), "not given") | dict(_unresolvable(tree, ""))
    if problems:
        lines = "; ".join(f"{name} ({why})" for name, why in problems.items())
        first = next(iter(problems))
        raise ConfigError(
            f"{len(problems)} value{'s' if len(problems) > 1 else ''} missing: {lines}",
            follows="the run would fail when it first needs one of them",
            remedy=f"set each, for example {first}=VALUE"
            + ("" if "name" not in problems else ", or choose an experiment: conf=exp1"),
        )
    return _plain(tree)


def _plain(tree: DictConfig) -> dict[str, object]:
    plain = OmegaConf.to_container(tree, resolve=True, enum_to_str=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _unresolvable(node: object, prefix: str) -> Iterator[tuple[str, str]]:
    """(name, why) of each value whose reference leads nowhere."""
    if not isinstance(node, DictConfig):
        return
    for key in node:
        name = f"{prefix}{key}"
        if OmegaConf.is_missing(node, key):
            continue
        try:
            value = node[key]
        except OmegaConfBaseException as error:
            yield name, str(error).partition("\n")[0]
        else:
            yield from _unresolvable(value, f"{name}.")


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
