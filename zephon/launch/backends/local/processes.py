"""Small helpers of the supervisor that touch the system: private files, last words, and what a dead node has left behind."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
from typing import Any

import psutil


def write_private(path: str, data: dict[str, Any]) -> None:
    """Writes a small file that only its owner may read: who knows the token may stop the run."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(handle, "w", encoding="utf-8") as file:
        json.dump(data, file)


def overwrite(path: str, data: dict[str, Any]) -> None:
    """Replaces the content of an existing small file within the blocks that it has already: works on a full disk.

    Raises:
        OSError: it does not fit, or the file system needs new blocks for it.
    """
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
    handle = os.open(path, os.O_WRONLY)
    try:
        found = os.fstat(handle)
        if len(text) > max(found.st_size, found.st_blocks * 512):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        os.pwrite(handle, text.ljust(found.st_size), 0)
    finally:
        os.close(handle)


def end_session(leader: int) -> None:
    """Kills what is left of a session: grandchildren of a dead node that had no time to end their own."""
    if leader == 0:
        return
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if process.pid != leader and os.getsid(process.pid) == leader:
                os.kill(process.pid, signal.SIGKILL)
