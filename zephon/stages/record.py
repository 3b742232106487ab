"""What is known of stages: a record of each, which stages are current, and how an attempt's stages stand on a cluster.

    stages/NAME.json             StageRecord      by the process of the stage, or by whoever saw it end
    attempts/NNNN/stages.json    AttemptStages    by the coordinator, where nodes carry stages out

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
from zephon.run.plain import as_record
from zephon.spec.experiment import RunSpec
from zephon.stages.inputs import Inputs, fingerprint, inputs_of
from zephon.stages.stage import BUILT_IN, TRAIN, Stage, stages_of
from zephon.stages.walk import StageEnd, StageState


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
    inputs: Inputs = dataclasses.field(default_factory=dict)
    inputs_sha256: str = ""
    outputs: Mapping[str, int] = dataclasses.field(default_factory=dict)
    result: object = None
    error: str = ""


def read_record(rundir: RunDir, name: str) -> StageRecord | None:
    """None where the stage was never begun."""
    return as_record(StageRecord, rundir.find_json("stages", f"{name}.json"))


def write_record(rundir: RunDir, record: StageRecord) -> None:
    rundir.write_json("stages", f"{record.name}.json", data=dataclasses.asdict(record))


def record_end(stage: Stage, rundir: RunDir, attempt: int, *, status: StageState, error: str) -> StageRecord:
    """Ends the record of a stage whose process had no time for it."""
    begun = read_record(rundir, stage.name) or StageRecord(name=stage.name, call=stage.call, attempt=attempt, status=status)
    record = dataclasses.replace(begun, status=status, attempt=attempt, ended=time.time(), error=error)
    write_record(rundir, record)
    return record


def record_training(rundir: RunDir, attempt: int, spec: RunSpec, *, started: float, end: StageEnd) -> None:
    """The record of stage ``train``, beside those of the others."""
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


def outstanding(spec: RunSpec, rundir: RunDir) -> list[str]:
    """Stages after ``train`` that would run if the run went on now."""
    after = stages_of(spec)[spec.stages.order.index(TRAIN) + 1 :]
    return [stage.name for stage in after if would_run(stage, spec, rundir)]


def would_run(stage: Stage, spec: RunSpec, rundir: RunDir, *, files: Mapping[str, object] | None = None) -> bool:
    """Whether the stage is not current; one whose input is not there yet is not. A cluster's is judged by what is seen here."""
    there = spec.scheduler.name == "local"
    try:
        inputs = inputs_of(stage, spec, rundir, there=there, files=files)
    except ConfigError:
        return True
    if there:
        return not is_current(rundir, stage, fingerprint(inputs))
    record = read_record(rundir, stage.name)
    if record is None or not is_current(rundir, stage, record.inputs_sha256):
        return True
    known = {name: value for name, value in record.inputs.items() if name in inputs}
    paths, seen = known.get("paths"), inputs.get("paths")
    if isinstance(paths, dict) and isinstance(seen, dict):
        known["paths"] = {path: value for path, value in paths.items() if path in seen}
    return fingerprint(known) != fingerprint(inputs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttemptStages:
    """How an attempt's stages stand, by its coordinator; a new one goes on from here.

    Args:
        states: of each stage, in order; empty before the coordinator's first entry.
        stage: the one that is under way, empty before the first and after the last.
        node: the node that carries it out, where one is enough.
        token: the newest fencing token: a node with an older one may not write the stage's record.
        lost: how many nodes were lost in this stage.
        status, cause: how the attempt has ended; None while it goes on.
    """

    states: Mapping[str, StageState] = dataclasses.field(default_factory=dict)
    stage: str = ""
    node: str = ""
    token: int = 0
    lost: int = 0
    status: int | None = None
    cause: str = ""


def read_attempt_stages(rundir: RunDir, attempt: int) -> AttemptStages:
    found = rundir.find_json("attempts", RunDir.attempt_name(attempt), "stages.json")
    known = as_record(AttemptStages, found) or AttemptStages()
    return dataclasses.replace(known, states=dict(known.states))


def write_attempt_stages(rundir: RunDir, attempt: int, known: AttemptStages) -> None:
    # A list keeps the order of the stages, which an object in a file with sorted keys would lose.
    data = {**dataclasses.asdict(known), "states": [[*entry] for entry in known.states.items()], "time": time.time()}
    rundir.write_json("attempts", RunDir.attempt_name(attempt), "stages.json", data=data)
