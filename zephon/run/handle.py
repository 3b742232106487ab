"""``attempts/NNNN/handle.json``: the backend that has the attempt. The launcher writes it before the submit, without the
handle, and after it."""

from __future__ import annotations

import dataclasses

from zephon.run.directory import RunDir
from zephon.run.plain import as_record

_FILE = "handle.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Handle:
    """One submitted attempt.

    Args:
        scheduler: name of the backend: local or kubernetes.
        handle: TorchX's name of the job, ``SCHEDULER://SESSION/APP``; empty until it is submitted.
        worker: module that each worker runs.
        time: of the submit, in unix seconds.
    """

    scheduler: str
    handle: str
    worker: str
    time: float

    @property
    def app_id(self) -> str:
        """The job's name at its scheduler."""
        return self.handle.partition("://")[2].partition("/")[2]


def read_handle(rundir: RunDir, attempt: int) -> Handle | None:
    """None where no submit has begun."""
    return as_record(Handle, rundir.find_json(*RunDir.in_attempt(attempt, _FILE)))


def write_handle(rundir: RunDir, attempt: int, handle: Handle) -> None:
    rundir.write_json(*RunDir.in_attempt(attempt, _FILE), data=dataclasses.asdict(handle))
