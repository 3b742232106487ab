"""A stored experiment where it lies now: run directories are moved, renamed and named from other working directories."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from zephon.errors import ConfigError
from zephon.fastjson import Json
from zephon.launch.backends.registry import backend
from zephon.launch.config.compose import option
from zephon.launch.config.overrides import check_once, split, to_tree
from zephon.launch.config.schema import is_group
from zephon.launch.status import absolute
from zephon.run.calibration import forget_calibration
from zephon.run.contract_file import Contract, has_contract, read_contract
from zephon.run.directory import RunDir
from zephon.run.environment import read_environment
from zephon.spec.experiment import RunSpec


def relocated(spec: RunSpec, rundir: RunDir) -> RunSpec:
    """The spec of a run on this machine with ``runs`` and ``name`` as its directory has them.

    The record may hold a relative ``runs`` (which means another place in another working directory) or an older name. On a
    cluster the record tells where the nodes write, and is left alone.
    """
    runs, _, name = absolute(rundir.url).rstrip("/").rpartition("/")
    return dataclasses.replace(spec, runs=runs, name=name) if backend(spec.scheduler.name).here else spec


def changed(spec: RunSpec, overrides: Sequence[str], *, config_dir: str | None = None) -> RunSpec:
    """The spec with overrides applied; of the config groups, ``stages=`` can be chosen again."""
    tree, parsed = spec.to_dict(), [split(text) for text in overrides]
    check_once(parsed)
    for override in parsed:
        text = override.text
        if override.key == "stages" and not override.prefix:
            _graft(tree, {"stages": option("stages", override.value or "", config_dir)})
            continue
        if override.prefix or is_group(override.key):
            raise ConfigError(
                f"{text!r} cannot change a stored experiment",
                follows="its config groups are not composed again",
                remedy="set single fields: KEY.FIELD=VALUE",
            )
        _graft(tree, to_tree(override))
    return RunSpec.from_dict(json.loads(json.dumps(tree)))


def _graft(tree: Json, branch: Mapping[str, object]) -> None:
    for key, value in branch.items():
        if isinstance(value, Mapping) and isinstance(tree.get(key), dict):
            _graft(tree[key], value)
        else:
            tree[key] = value


def check_same(spec: RunSpec, stored: RunSpec) -> None:
    """Raises ConfigError: changes to a stored spec make it another run's."""
    if (spec.runs, spec.name) != (stored.runs, stored.name):
        raise ConfigError(
            f"runs={spec.runs} name={spec.name} is another run than {stored.name}",
            follows="it would begin at step 0 beside the one that was to go on",
            remedy="leave name= and runs= out, or begin a new run from this one's checkpoint with fork=NAME",
        )


def check_relative(spec: RunSpec, rundir: RunDir, attempt: int) -> None:
    """Refuses data whose path is relative and leads nowhere here, but somewhere from where the attempt was started.

    Raises:
        ConfigError: naming the field and the directory.
    """
    environment = read_environment(rundir, attempt)
    began = Path(environment.cwd if environment else os.getcwd())
    sections = (("data.datasets", spec.data.datasets), ("trainer.eval_data", spec.trainer.eval_data or {}))
    for at, datasets in sections:
        for name, data in datasets.items():
            path = Path(data.path).expanduser()
            if "://" in data.path or path.is_absolute() or path.exists() or not (began / path).exists():
                continue
            raise ConfigError(
                f"{at}.{name}.path={data.path} is relative to {began}, where the run was started",
                follows="it leads nowhere from here",
                remedy=f"go there first (cd {began}), or give the whole path: {at}.{name}.path={began / path}",
            )


def forget_measures(rundir: RunDir, contract: Contract) -> None:
    """Removes the calibration of an untrained run that now gets another contract: it was measured on other data."""
    if has_contract(rundir) and read_contract(rundir) != contract:
        forget_calibration(rundir)
