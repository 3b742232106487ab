"""The supervisor of an attempt, seen from other processes: whether it lives, what it wrote, how it is told what to do.

The system frees ``supervisor.lock`` with the process that holds it, so that a killed supervisor never passes for a live one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import signal
import socket

import psutil

from zephon.errors import ConfigError
from zephon.exits import Exit
from zephon.run import state as files
from zephon.run.attempt import attempt_directory
from zephon.run.directory import RunDir
from zephon.run.lease import LEASE_S, read_lease
from zephon.run.state import AttemptState

_FULL_BYTES = 16384
_TIMEOUT_S = 10.0


def read_state(rundir: RunDir, attempt: int) -> AttemptState | None:
    """What the supervisor wrote last, corrected when it has died without an end; None when there never was one.

    From another machine than the supervisor's, the copy in the run directory counts, and the lease says whether it lives.
    """
    state = files.read_state(rundir, attempt)
    if state is None:
        return None if rundir.local else _from_elsewhere(rundir, attempt)
    if state.ended or running(rundir, attempt):
        return state
    state = files.read_state(rundir, attempt) or state  # it may have ended properly between the two reads
    if state.ended:
        return state
    end_leftovers(state.app_id)
    why = "the supervisor was killed"
    if (free := shutil.disk_usage(attempt_directory(rundir, attempt)).free) < _FULL_BYTES:
        why = f"no space left on the run directory's disk ({free:,} bytes free), so the supervisor could not write how it ended"
    return _failed(state, f"{why}; nothing of it is left running")


def _from_elsewhere(rundir: RunDir, attempt: int) -> AttemptState | None:
    state, lease = files.read_copy(rundir, attempt), read_lease(rundir)
    if state is None or state.ended or (lease is not None and lease.binds):
        return state
    host = f" on {lease.host}" if lease else ""
    return _failed(state, f"its supervisor{host} has not written for {LEASE_S:.0f} s")


def _failed(state: AttemptState, message: str) -> AttemptState:
    return dataclasses.replace(state, state="FAILED", status=Exit.FAILED, message=message)


def running(rundir: RunDir, attempt: int) -> bool:
    """Whether a supervisor holds the lock of an attempt's directory on this machine."""
    try:
        with open(attempt_directory(rundir, attempt) / "supervisor.lock", "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True


def command(rundir: RunDir, attempt: int, verb: str, **arguments: int) -> None:
    """Sends one command, ``stop`` or ``rescale`` with ``nodes``, to the supervisor of a running attempt.

    Raises:
        ConfigError: it refused, or it does not run.
    """
    state = read_state(rundir, attempt)
    if state is None or state.ended:
        raise ConfigError(
            f"attempt {attempt} of {rundir.url} does not run",
            follows="there is nobody to obey",
            remedy="look at `status`; `resume` starts the run again",
        )
    directory = attempt_directory(rundir, attempt)
    if not (directory / "control.json").exists():
        raise ConfigError(
            f"attempt {attempt} of {rundir.url} takes no commands here: it runs on another machine, or has just been started",
            follows="there is nobody to obey",
            remedy="give the command on the machine that `status` names in its lease, or again in a moment",
        )
    control = RunDir(str(directory)).read_json("control.json")
    with socket.create_connection(("127.0.0.1", control["port"]), timeout=_TIMEOUT_S) as link:
        link.sendall(json.dumps({"verb": verb, **arguments, "token": control["token"]}).encode() + b"\n")
        reply = json.loads(link.makefile("rb").readline() or b"{}")
    if not reply.get("ok"):
        raise ConfigError(
            reply.get("what", "the supervisor did not answer"),
            follows=reply.get("follows", "the command had no effect"),
            remedy=reply.get("remedy", "look at `status` and the supervisor's log"),
        )


def end_leftovers(app_id: str) -> int:
    """Kills processes of an attempt whose supervisor is dead; returns how many there were."""
    count = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get("ZEPHON_APP_ID") == app_id:
                process.send_signal(signal.SIGKILL)
                count += 1
    return count
