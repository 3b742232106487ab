"""Checkpoints of a run: which there are, and which are complete."""

from __future__ import annotations

import re

from zephon.run.directory import RunDir


def newest_checkpoint(rundir: RunDir) -> int:
    """The step of the newest complete checkpoint; -1 when there is none."""
    if not rundir.exists("checkpoints"):
        return -1
    names = (str(path).rstrip("/").rsplit("/", 1)[-1] for path in rundir.fs.ls(rundir.path("checkpoints"), detail=False))
    steps = sorted((int(m[1]) for name in names if (m := re.fullmatch(r"step-(\d+)", name))), reverse=True)
    for step in steps:
        if rundir.exists("checkpoints", f"step-{step:08d}", "COMPLETE"):
            return step
    return -1
