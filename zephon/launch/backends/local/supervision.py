"""The supervisor of an attempt, as other processes see it: its state, corrected where it was killed, and its control port."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import socket

from zephon.agent.channel import NotAuthentic, connect
from zephon.errors import ConfigError
from zephon.exits import Exit
from zephon.launch.backends.local.commands import Command, check_reply, encode
from zephon.run import state as files
from zephon.run.attempt import attempt_directory
from zephon.run.directory import RunDir
from zephon.run.lease import LEASE_S, read_lease
from zephon.run.secret import find_secret
from zephon.run.state import AttemptState
from zephon.run.supervisor_files import read_control_port, supervisor_lives

_FULL_BYTES = 16384
_TIMEOUT_S = 10.0


def read_state(rundir: RunDir, attempt: int) -> AttemptState | None:
    """What the supervisor wrote last, corrected where it died without writing its end; None where it never wrote.

    From another machine than the supervisor's, the copy in the run directory counts, and the lease says whether it lives.
    """
    state = files.read_state(rundir, attempt)
    if state is None:
        return None if rundir.local else _from_elsewhere(rundir, attempt)
    if state.ended or supervisor_lives(rundir, attempt):
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


def send_command(rundir: RunDir, attempt: int, command: Command) -> None:
    """Sends one command to the supervisor of a running attempt.

    Raises:
        ConfigError: the supervisor refused, or does not run here.
    """
    state = read_state(rundir, attempt)
    if state is None or state.ended:
        raise ConfigError(
            f"attempt {attempt} of {rundir.url} does not run",
            remedy="look at `status`; `resume` starts the run again",
        )
    control, secret = read_control_port(rundir, attempt), find_secret(rundir, attempt)
    if control is None or secret is None:
        raise ConfigError(
            f"attempt {attempt} of {rundir.url} takes no commands here: it runs on another machine, or has just been started",
            remedy="give the command on the machine that `status` names in its lease, or again in a moment",
        )
    reply = b""
    with (
        contextlib.suppress(NotAuthentic),  # it has ended, and another program may have its port
        socket.create_connection(("127.0.0.1", control.port), timeout=_TIMEOUT_S) as link,
    ):
        ours, theirs = connect(link, secret, "control")
        link.settimeout(_TIMEOUT_S)
        link.sendall(ours.seal(encode(command)))
        if sealed := link.makefile("rb").readline():
            reply = theirs.open(sealed)
    check_reply(reply)


def end_leftovers(app_id: str) -> int:
    """Kills processes of an attempt whose supervisor is dead; returns how many there were."""
    import psutil  # `list` and `status` read this module, and end nothing

    count = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get("ZEPHON_APP_ID") == app_id:
                process.send_signal(signal.SIGKILL)
                count += 1
    return count
