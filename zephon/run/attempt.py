"""Where an attempt keeps what only this machine can use: its supervisor's files, and its logs while it runs.

run directory on this machine's file system     attempts/NNNN in the run directory
anywhere else (s3://..., another scheme)        $XDG_STATE_HOME/zephon/attempts/HASH-OF-URL/NNNN; the state is copied to
                                                the run directory when it changes, the logs when the attempt has ended
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from zephon.run.directory import RunDir

_LOGS = "logs"


def state_home() -> Path:
    """This user's state of all runs on this machine."""
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(home) / "zephon"


def index_dir() -> Path:
    """Where this user's attempts on this machine are listed."""
    return state_home() / "local"


def attempt_directory(rundir: RunDir, attempt: int) -> Path:
    """The attempt's directory on this machine; it may not exist."""
    name = RunDir.attempt_name(attempt)
    if rundir.local:
        return Path(rundir.path("attempts", name))
    return state_home() / "attempts" / hashlib.sha256(rundir.url.rstrip("/").encode()).hexdigest()[:16] / name


def logs_of(rundir: RunDir, attempt: int) -> Path:
    """Where processes on this machine write the attempt's logs: ``node-0/rank-0.log``, ``stages/NAME.log``, ..."""
    return attempt_directory(rundir, attempt) / _LOGS


def shared_logs(rundir: RunDir, attempt: int, *parts: str) -> str:
    """The path of the attempt's logs in the run directory, where nodes of a cluster and ended attempts have theirs."""
    return rundir.path(*RunDir.in_attempt(attempt, _LOGS, *parts))


def hand_in_logs(rundir: RunDir, attempt: int) -> None:
    """Copies the logs of an ended attempt to a run directory that is elsewhere."""
    if rundir.local:
        return
    logs = logs_of(rundir, attempt)
    for path in sorted(logs.rglob("*.log")):
        rundir.write_bytes(*RunDir.in_attempt(attempt, _LOGS, *path.relative_to(logs).parts), data=path.read_bytes())


def fetch_logs(rundir: RunDir, attempt: int, folder: Path) -> None:
    """Copies the logs that an attempt on another machine has handed in to a folder of this one."""
    top = shared_logs(rundir, attempt)
    for path in sorted(rundir.fs.find(top)) if rundir.fs.exists(top) else []:
        target = folder / str(path).removeprefix(top).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(rundir.fs.cat_file(path))
