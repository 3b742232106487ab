"""The end of a stage as it is recorded, and what follows from records: which stages are current.

A stage is current when it is done, the hash of its inputs is what it was, and its outputs are there.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping

from zephon.errors import ConfigError
from zephon.exits import Exit, outcome_of
from zephon.run.checkpoints import newest_checkpoint
from zephon.run.directory import RunDir
from zephon.run.stage_records import StageRecord, StageState, read_record, write_record
from zephon.spec.experiment import RunSpec
from zephon.stages.inputs import fingerprint, inputs_of
from zephon.stages.stage import BUILT_IN, TRAIN, Stage, stages_of
from zephon.stages.walk import StageEnd


def record_end(stage: Stage, rundir: RunDir, attempt: int, *, status: StageState, error: str) -> StageRecord:
    """Ends the record of a stage whose process ended before it could."""
    begun = read_record(rundir, stage.name) or StageRecord(name=stage.name, call=stage.call, attempt=attempt, status=status)
    record = dataclasses.replace(begun, status=status, attempt=attempt, ended=time.time(), error=error)
    write_record(rundir, record)
    return record


def record_training(rundir: RunDir, attempt: int, spec: RunSpec, *, started: float, end: StageEnd) -> None:
    """Writes the record of stage ``train``, which has no process of its own."""
    inputs = inputs_of(BUILT_IN[TRAIN], spec, rundir)
    record = StageRecord(
        name=TRAIN,
        call="",
        attempt=attempt,
        status=outcome_of(end.status),
        started=started,
        ended=time.time(),
        inputs=inputs,
        inputs_sha256=fingerprint(inputs),
        outputs={"step": newest_checkpoint(rundir)},
        error="" if end.status == Exit.DONE else end.cause,
    )
    write_record(rundir, record)


def is_current(rundir: RunDir, stage: Stage, inputs_sha256: str) -> bool:
    """Whether the stage need not run again."""
    record = read_record(rundir, stage.name)
    done = record is not None and record.status == "done" and record.inputs_sha256 == inputs_sha256
    return done and all(rundir.exists(path) for path in stage.outputs)


def outstanding(spec: RunSpec, rundir: RunDir, *, here: bool) -> list[str]:
    """Stages after ``train`` that would run if the run went on now."""
    after = stages_of(spec)[spec.stages.order.index(TRAIN) + 1 :]
    return [stage.name for stage in after if would_run(stage, spec, rundir, here=here)]


def would_run(stage: Stage, spec: RunSpec, rundir: RunDir, *, here: bool, files: Mapping[str, object] | None = None) -> bool:
    """Whether the stage would run: it is not current, or an input does not exist yet.

    Args:
        here: the stage runs on this machine; of a cluster's stage only what this machine sees is compared.
        files: the datasets' files, where they are known.
    """
    try:
        inputs = inputs_of(stage, spec, rundir, here=here, files=files)
    except ConfigError:
        return True
    if here:
        return not is_current(rundir, stage, fingerprint(inputs))
    record = read_record(rundir, stage.name)
    if record is None or not is_current(rundir, stage, record.inputs_sha256):
        return True
    known = {name: value for name, value in record.inputs.items() if name in inputs}
    paths, seen = known.get("paths"), inputs.get("paths")
    if isinstance(paths, dict) and isinstance(seen, dict):
        known["paths"] = {path: value for path, value in paths.items() if path in seen}
    return fingerprint(known) != fingerprint(inputs)
