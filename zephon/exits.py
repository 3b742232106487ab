"""Exit statuses: what every process of a run tells its parent, its node and the cluster when it ends.

worker         0, 65, 75, 143; anything else is a crash
agent          0, 1, 65, 70, 143
coordinator    0, 1, 65
stage          0, 1, 65, 75
zephon VERB    0, 1, 2, 65, 130, 143
"""

from __future__ import annotations

import enum
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
    """The step was finished and saved, because another node joins or leaves, or a newer generation or turn has the work."""

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
    Exit.LEFT: "drained on request",
}


def outcome_of(status: int) -> Literal["done", "stopped", "failed"]:
    """How a run or a stage with this status ended."""
    if status == Exit.DONE:
        return "done"
    return "stopped" if status == Exit.LEFT else "failed"
