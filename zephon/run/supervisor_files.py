"""Files of an attempt that only its machine uses: what its supervisor runs, its control port, and whether it lives.

request.json       the launcher writes it, the supervisor reads it
control.json       the supervisor writes it, every verb that gives it a command reads it
supervisor.lock    locked while the supervisor lives; the system frees the lock with the process, however that ends
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
from pathlib import Path

from zephon.errors import ConfigError
from zephon.run.attempt import attempt_directory
from zephon.run.directory import NO_LOCKS, RunDir
from zephon.run.plain import as_record

_REQUEST, _CONTROL, _LOCK = "request.json", "control.json", "supervisor.lock"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalRequest:
    """One attempt on this machine: ``plan`` prints it, a submit sends it.

    Args:
        app_id: unique name of the attempt on this machine.
        run: URL of the run directory.
        attempt: number of this start.
        nodes: how many agents to start.
        args: arguments of every agent.
        env: environment of every agent, beside the supervisor's own.
        worker: module that each worker runs.
        cwd: where relative paths of the spec start.
        gpus: device ids; each node takes one per worker.
        lease: token of the lease that the launcher has taken for the supervisor.
    """

    app_id: str
    run: str
    attempt: int
    nodes: int
    args: list[str]
    env: dict[str, str]
    worker: str
    cwd: str
    gpus: list[str] = dataclasses.field(default_factory=list)
    lease: str = ""

    def __str__(self) -> str:
        shown = {**dataclasses.asdict(self), "lease": "..." if self.lease else ""}
        return json.dumps(shown, indent=2, ensure_ascii=False)


@dataclasses.dataclass(frozen=True)
class ControlPort:
    """Where a supervisor takes commands on this machine, from who knows the attempt's secret."""

    port: int


def write_request(request: LocalRequest) -> Path:
    """Writes the request and returns its path, which is the supervisor's argument."""
    path = attempt_directory(RunDir(request.run), request.attempt) / _REQUEST
    _write_private(path, request)
    return path


def read_request(path: Path) -> LocalRequest:
    return LocalRequest(**json.loads(path.read_bytes()))


def write_control_port(rundir: RunDir, attempt: int, control: ControlPort) -> None:
    _write_private(attempt_directory(rundir, attempt) / _CONTROL, control)


def read_control_port(rundir: RunDir, attempt: int) -> ControlPort | None:
    """None before the supervisor listens, and on any other machine."""
    return as_record(ControlPort, RunDir(str(attempt_directory(rundir, attempt))).find_json(_CONTROL))


def hold_supervisor_lock(directory: Path) -> None:
    """Locks an attempt's directory until this process ends.

    Raises:
        BlockingIOError: another supervisor holds it.
        ConfigError: the file system has no locks.
    """
    lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        raise ConfigError(
            f"{directory / _LOCK} cannot be locked: its file system has no file locks",
            follows="nobody could tell whether this attempt is alive",
            remedy="use runs= on a local disk, on a network file system with locks, or in an object store",
        ) from error
    os.set_inheritable(lock, False)


def supervisor_began(rundir: RunDir, attempt: int) -> bool:
    """Whether a supervisor of this attempt has ever run on this machine."""
    return (attempt_directory(rundir, attempt) / _LOCK).exists()


def supervisor_lives(rundir: RunDir, attempt: int) -> bool:
    """Whether a supervisor of this attempt runs on this machine."""
    try:
        with open(attempt_directory(rundir, attempt) / _LOCK, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True


def _write_private(path: Path, record: LocalRequest | ControlPort) -> None:
    """Writes a file that only its owner may read: a token lets its reader act in the owner's name."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(handle, "w", encoding="utf-8") as file:
        json.dump(dataclasses.asdict(record), file, indent=2)
