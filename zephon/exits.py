"""How processes end: the exit statuses of every process of a run, and that none outlives its parent.

worker         0, 65, 75, 143; anything else is a crash
agent          0, 1, 65, 70, 143
coordinator    0, 1, 65
stage          0, 1, 65, 75
zephon VERB    0, 1, 2, 65, 130, 143
"""

from __future__ import annotations

import enum
import os
import signal
import sys
from typing import Literal


class Exit(enum.IntEnum):
    """The statuses that have a meaning of their own. All others are crashes."""

    DONE = 0
    """The last step is done; a stage is done or was skipped; a command did what it was asked."""

    FAILED = 1
    """This process, or the job that it waited for, failed. Trying again may help."""

    DISAGREES = 2
    """Two ledgers differ, or a check of ``doctor`` failed."""

    REFUSED = 65
    """Configuration, contract or data that cannot work. Trying again cannot help."""

    FAILED_FOR_GOOD = 70
    """The coordinator has ended the job as failed: starting this agent again is no use."""

    DRAINED = 75
    """The step was finished and saved: another node joins or leaves, or another process has a newer fencing token."""

    LOST_PEER = 76
    """No process ends with it: a worker has lost a peer in the middle of a step, holds the state before it and waits."""

    INTERRUPTED = 130
    """Ctrl-C ended the command; the run goes on."""

    KILLED = 137
    """SIGKILL: by force, or by the kernel for memory."""

    LEFT = 143
    """This process was asked to leave (SIGTERM), finished its step and left."""


PLANNED = frozenset({Exit.DONE, Exit.DRAINED, Exit.LEFT})  # a worker with another status has crashed
FINAL = (Exit.REFUSED, Exit.FAILED_FOR_GOOD)  # a cluster does not try again after these
DRAINS = (Exit.DRAINED, Exit.LEFT)  # a cluster does not count these as failures

MEANING: dict[int, str] = {
    Exit.REFUSED: "configuration or contract error",
    Exit.FAILED_FOR_GOOD: "the job has failed for good",
    Exit.DRAINED: "drained for a resize",
    Exit.LOST_PEER: "lost a peer",
    Exit.LEFT: "drained on request",
}


def outcome_of(status: int) -> Literal["done", "stopped", "failed"]:
    """How a run or a stage with this status ended."""
    if status == Exit.DONE:
        return "done"
    return "stopped" if status == Exit.LEFT else "failed"


def die_with_parent(parent: int, sig: signal.Signals = signal.SIGKILL) -> None:
    """Asks the kernel to signal this process when the thread of ``parent``, its parent's pid, that started it ends.

    On Linux only; elsewhere it does nothing.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes  # loaded by those who start processes, not by every command

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(sig), 0, 0, 0)
    if os.getppid() != parent:  # it ended before the request took effect
        os._exit(128 + int(sig))


_PR_SET_PDEATHSIG = 1
