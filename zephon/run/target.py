"""``attempts/NNNN/target.json``: the size that the last rescale asked for. A cluster's coordinator cannot read the
Job, so the launcher writes it here."""

from __future__ import annotations

import dataclasses
import time

from zephon.run.directory import RunDir
from zephon.run.plain import as_record

_FILE = "target.json"


@dataclasses.dataclass(frozen=True)
class Target:
    """``nodes`` were asked for at ``time``, in unix seconds."""

    nodes: int
    time: float


def read_target(rundir: RunDir, attempt: int) -> Target | None:
    """None where no rescale was asked for, or the launcher could not write it."""
    return as_record(Target, rundir.find_json(*RunDir.in_attempt(attempt, _FILE)))


def write_target(rundir: RunDir, attempt: int, nodes: int) -> None:
    rundir.write_json(*RunDir.in_attempt(attempt, _FILE), data=dataclasses.asdict(Target(nodes, time.time())))
