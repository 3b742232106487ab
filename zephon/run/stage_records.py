"""``stages/NAME.json``: a stage as it was carried out last. Its process writes it; where that was killed, its parent."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

from zephon.run.directory import RunDir
from zephon.run.plain import as_record

StageState = Literal["waiting", "running", "done", "skipped", "failed", "stopped"]
_FOLDER = "stages"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageRecord:
    """One stage as it was carried out last.

    Args:
        attempt: the attempt that carried it out.
        started, ended: unix seconds; None where it is not known, or not over.
        outputs: size in bytes by path below the run directory; of training, its last saved step.
        result: what its function returned.
        error: why it has failed or was stopped.
    """

    name: str
    call: str
    attempt: int
    status: StageState
    started: float | None = None
    ended: float | None = None
    inputs: Mapping[str, object] = dataclasses.field(default_factory=dict)
    inputs_sha256: str = ""
    outputs: Mapping[str, int] = dataclasses.field(default_factory=dict)
    result: object = None
    error: str = ""


def read_record(rundir: RunDir, name: str) -> StageRecord | None:
    """None where the stage was never begun."""
    return as_record(StageRecord, rundir.find_json(_FOLDER, f"{name}.json"))


def write_record(rundir: RunDir, record: StageRecord) -> None:
    """Replaces the stage's record, unless a later attempt has written it: that one has the run now."""
    known = read_record(rundir, record.name)
    if known is not None and known.attempt > record.attempt:
        return
    rundir.write_json(_FOLDER, f"{record.name}.json", data=dataclasses.asdict(record))
