"""How stages end, and what is current by their records."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.agent.toy import toy_spec
from zephon.run.directory import RunDir
from zephon.run.stage_records import StageRecord, read_record, write_record
from zephon.stages.record import is_current, record_end, record_training
from zephon.stages.stage import Stage
from zephon.stages.walk import StageEnd

STAGE = Stage(name="report", call="own:report", outputs=("report.json",))
DONE = StageRecord(
    name="report",
    call="own:report",
    attempt=2,
    status="done",
    started=1.5,
    ended=2.5,
    inputs={"contract": "ab", "paths": {"in.json": "cd"}},
    inputs_sha256="ef",
    outputs={"report.json": 12},
    result={"tries": 1},
)


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    return RunDir(str(tmp_path / "toy"))


def test_the_end_of_a_process_that_wrote_nothing_is_recorded_over_what_is_known(rundir: RunDir) -> None:
    ended = record_end(STAGE, rundir, 1, status="failed", error="killed")
    assert (ended.status, ended.attempt, ended.error, ended.inputs) == ("failed", 1, "killed", {})
    write_record(rundir, DONE)
    again = record_end(STAGE, rundir, 3, status="stopped", error="stopped")
    assert again == read_record(rundir, "report") == dataclasses.replace(DONE, **vars_of(again))


def vars_of(record: StageRecord) -> dict[str, object]:
    return {name: getattr(record, name) for name in ("status", "attempt", "ended", "error")}


def test_training_is_recorded_with_how_it_ended(rundir: RunDir, tmp_path: Path) -> None:
    record_training(rundir, 1, toy_spec(tmp_path), started=1.0, end=StageEnd("stopped", 143, "stopped"))
    record = read_record(rundir, "train")
    assert record is not None
    assert (record.status, record.error, record.outputs) == ("stopped", "stopped", {"step": -1})


def test_a_stage_is_current_when_it_is_done_with_these_inputs_and_its_outputs_are_there(rundir: RunDir) -> None:
    assert not is_current(rundir, STAGE, "ef")
    write_record(rundir, DONE)
    assert not is_current(rundir, STAGE, "ef"), "its output is not there"
    rundir.write_json("report.json", data={})
    assert is_current(rundir, STAGE, "ef")
    assert not is_current(rundir, STAGE, "other inputs")
    write_record(rundir, dataclasses.replace(DONE, status="failed"))
    assert not is_current(rundir, STAGE, "ef")
