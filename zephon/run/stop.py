"""``attempts/NNNN/stop.json``: the last stop that a user asked for. A cluster's coordinator outlives a stop and must know."""

from __future__ import annotations

import dataclasses
import time

from zephon.run.directory import RunDir
from zephon.run.plain import as_record

_FILE = "stop.json"


@dataclasses.dataclass(frozen=True)
class Stop:
    """A stop was asked for at ``time``, in unix seconds. No two stops are equal."""

    time: float


def read_stop(rundir: RunDir, attempt: int) -> Stop | None:
    """The newest stop; None where there was none."""
    return as_record(Stop, rundir.find_json(*RunDir.in_attempt(attempt, _FILE)))


def write_stop(rundir: RunDir, attempt: int) -> None:
    rundir.write_json(*RunDir.in_attempt(attempt, _FILE), data=dataclasses.asdict(Stop(time.time())))
