"""The processes that a dead node leaves behind."""

from __future__ import annotations

import contextlib
import os
import signal

import psutil


def end_session(leader: int) -> None:
    """Kills what is left of a session: grandchildren of a dead node that had no time to end their own."""
    if leader == 0:
        return
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if process.pid != leader and os.getsid(process.pid) == leader:
                os.kill(process.pid, signal.SIGKILL)
