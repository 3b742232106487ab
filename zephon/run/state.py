"""The state of an attempt: its supervisor writes it on this machine, and a cluster's answer becomes one.

attempts/NNNN/supervisor.json     in the attempt's directory on this machine, and copied to a run directory that is elsewhere

Whether the supervisor that wrote a state still lives is checked in launch/backends/local.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from collections.abc import Mapping
from typing import Any, Literal, Self

from zephon.exits import outcome_of
from zephon.fastjson import Json
from zephon.run.attempt import attempt_directory
from zephon.run.directory import RunDir

State = Literal[
    "UNSUBMITTED", "QUEUED", "STARTING", "RUNNING", "DRAINING", "UNKNOWN", "ELSEWHERE", "DONE", "STOPPED", "FAILED", "GONE"
]
"""UNSUBMITTED: its submit never reached the scheduler, or was cut off. QUEUED: its scheduler has it and has not started it.

UNKNOWN: the cluster does not say. ELSEWHERE: it is in another cluster than the one that is asked. GONE: nothing is left of it
in its own cluster, and nobody stopped it.
"""
ENDED: tuple[State, ...] = ("UNSUBMITTED", "DONE", "STOPPED", "FAILED", "GONE")

PARTS = ("drain", "save", "membership", "restore", "first_step")
"""Of a stall, in order."""
_FILE = "supervisor.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resized:
    """A change of size from the order to the first step after it, as the ``resized`` event has it.

    Args:
        reason: why the membership changed.
        generation: the new one.
        nodes_before, nodes: members of the old and the new generation.
        step_before, step_after: the last step of the old one and the first of the new one.
        lost_steps: steps that had to be trained again.
        stall_s: seconds between those two steps.
        parts_s: where they went: drain, save, membership, restore, first_step.
    """

    reason: str
    generation: int
    nodes_before: int
    nodes: int
    step_before: int
    step_after: int
    lost_steps: int
    stall_s: float
    parts_s: Mapping[str, float]

    @property
    def sentence(self) -> str:
        """Sizes, stall and its parts, steps lost, on one line."""
        parts = ", ".join(f"{name.replace('_', ' ')} {self.parts_s[name]:.2f}" for name in PARTS if name in self.parts_s)
        return (
            f"{self.nodes_before} -> {self.nodes} nodes ({self.reason}): stalled {self.stall_s:.2f} s "
            f"({parts}), {self.lost_steps} steps lost"
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """From an event, which has further keys, or from a state file."""
        return cls(**{field.name: data[field.name] for field in dataclasses.fields(cls)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts:
    """How often what happened in an attempt: crashes of workers, nodes that were lost, changes of size."""

    failures: int = 0
    lost: int = 0
    resizes: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttemptState:
    """One attempt at one moment.

    Args:
        app_id: its name where it runs.
        message: explains the state.
        notes: what else is worth knowing, a sentence each, the victims of a loss first.
        status: exit status, once it has ended.
        target: how many nodes are wanted.
        members: nodes that train together, with their incarnation.
        generation: number of that membership.
        resized: the last change of size.
        stage, stages: the stage that is under way, and each stage's own state in order; empty where training is all.
        pid, agents, time: on this machine: the supervisor's process, each node's (None: not forked yet), when it wrote.
    """

    app_id: str
    state: State
    message: str = ""
    notes: tuple[str, ...] = ()
    status: int | None = None
    target: int = 0
    members: tuple[str, ...] = ()
    generation: int = 0
    resized: Resized | None = None
    counts: Counts = Counts()
    stage: str = ""
    stages: Mapping[str, str] = dataclasses.field(default_factory=dict)
    pid: int | None = None
    agents: Mapping[str, int | None] = dataclasses.field(default_factory=dict)
    time: float = 0.0

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def to_json(self) -> Json:
        plain: Json = dataclasses.asdict(self)
        return {**plain, "stages": [[*item] for item in self.stages.items()]}  # an object's keys are sorted when written

    @classmethod
    def from_json(cls, data: Json) -> Self:
        resized = data["resized"]
        typed = {
            "members": tuple(data["members"]),
            "notes": tuple(data["notes"]),
            "resized": None if resized is None else Resized.from_json(resized),
            "counts": Counts(**data["counts"]),
            "stages": dict(data["stages"]),
        }
        return cls(**{**data, **typed})


def ended_as(status: int) -> State:
    """The state of an attempt whose job has ended with this exit status."""
    states: dict[str, State] = {"done": "DONE", "stopped": "STOPPED", "failed": "FAILED"}
    return states[outcome_of(status)]


def write_state(rundir: RunDir, attempt: int, state: AttemptState, *, copy: bool) -> None:
    """Writes the state on this machine; with ``copy`` also where a run directory elsewhere has it for others."""
    directory = attempt_directory(rundir, attempt)
    try:
        RunDir(str(directory)).write_json(_FILE, data=state.to_json())
    except OSError:  # no space left for a second file
        overwrite(str(directory / _FILE), state.to_json())
    if copy and not rundir.local:
        rundir.write_json("attempts", RunDir.attempt_name(attempt), _FILE, data=state.to_json())


def read_state(rundir: RunDir, attempt: int) -> AttemptState | None:
    """The state that a supervisor on this machine wrote last; None when there has been none here."""
    return _read(RunDir(str(attempt_directory(rundir, attempt))), _FILE)


def read_copy(rundir: RunDir, attempt: int) -> AttemptState | None:
    """The copy that a supervisor on another machine has put into the run directory."""
    return _read(rundir, "attempts", RunDir.attempt_name(attempt), _FILE)


def _read(directory: RunDir, *parts: str) -> AttemptState | None:
    try:
        return AttemptState.from_json(directory.read_json(*parts))
    except FileNotFoundError:
        return None


def overwrite(path: str, data: Json) -> None:
    """Overwrites an existing small file within the blocks that it has, which works on a full disk.

    Raises:
        OSError: it does not fit, or the file system needs new blocks for it.
    """
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
    handle = os.open(path, os.O_WRONLY)
    try:
        info = os.fstat(handle)
        if len(text) > max(info.st_size, info.st_blocks * 512):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        os.pwrite(handle, text.ljust(info.st_size), 0)
    finally:
        os.close(handle)
