"""Small helpers of the supervisor that touch the system: private files, and the processes that a dead node leaves."""

from __future__ import annotations

import contextlib
import json
import os
import signal

import psutil

from zephon.fastjson import Json


def write_private(path: str, data: Json) -> None:
    """Writes a small file that only its owner may read: who knows the token may stop the run."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(handle, "w", encoding="utf-8") as file:
        json.dump(data, file)


def end_session(leader: int) -> None:
    """Kills what is left of a session: grandchildren of a dead node that had no time to end their own."""
    if leader == 0:
        return
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if process.pid != leader and os.getsid(process.pid) == leader:
                os.kill(process.pid, signal.SIGKILL)
