"""A fork: a new run, with changes that its parent's contract refuses, which begins with the parent's weights."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

from zephon.errors import ConfigError
from zephon.fastjson import Json
from zephon.launch.contract import Difference
from zephon.run.checkpoints import newest_checkpoint
from zephon.run.directory import PARENT, RunDir
from zephon.spec.experiment import RunSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parent:
    """Where a fork comes from, as its contract records it: the run, the step of the weights, what was changed."""

    run: str
    step: int
    changes: tuple[Difference, ...]

    def to_json(self) -> Json:
        plain: Json = dataclasses.asdict(self)
        return plain


def forked(spec: RunSpec, name: str, *, parent: RunDir, changes: tuple[Difference, ...], run: str) -> tuple[RunSpec, Parent]:
    """The spec of the fork and its parent.

    Args:
        spec: the parent's experiment with the changes.
        name: of the new run.
        parent: the parent's run directory.
        changes: how ``spec`` differs from the parent's contract.
        run: URL of the fork's run directory, as its nodes see it.

    Raises:
        ConfigError: the parent has no checkpoint.
    """
    step = newest_checkpoint(parent)
    if step < 0:
        raise ConfigError(
            f"fork={name}: {parent.url} has no complete checkpoint",
            follows="there would be nothing to start from",
            remedy="start a new run under another name: name=NAME",
        )
    model = dataclasses.replace(spec.model, init_from=RunDir(run).path(PARENT))
    return dataclasses.replace(spec, name=name, model=model), Parent(run=parent.url, step=step, changes=changes)


def write_weights(parent: Parent, spec: RunSpec) -> None:
    """Writes the parent's weights where the fork begins from; in a process of its own, for that needs torch."""
    argv = [sys.executable, "-m", "zephon.train.hf", "--run", parent.run, "--step", str(parent.step)]
    done = subprocess.run([*argv, "--out", str(spec.model.init_from)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(
            f"the weights of {parent.run} at step {parent.step} could not be written: {done.stderr.strip()[-300:]}",
            follows="the fork would begin from other weights than its parent's",
            remedy="see the message; the parent run is unchanged",
        )
