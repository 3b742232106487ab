"""Records of stages, and how an attempt's stages stand: read as they were written."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from zephon.run.attempt_stages import AttemptStages, read_attempt_stages, write_attempt_stages
from zephon.run.directory import RunDir
from zephon.run.stage_records import StageRecord, read_record, write_record

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


@pytest.fixture(params=["file", "memory"])
def rundir(request: pytest.FixtureRequest, tmp_path: Path) -> RunDir:
    return RunDir(str(tmp_path) if request.param == "file" else f"memory://{tmp_path.name}-{time.time_ns()}")


def test_a_record_is_read_as_it_was_written(rundir: RunDir) -> None:
    assert read_record(rundir, "report") is None
    write_record(rundir, DONE)
    assert read_record(rundir, "report") == DONE


@pytest.mark.parametrize(
    "known",
    [
        AttemptStages(),
        AttemptStages(states={"z": "running", "a": "waiting"}, stage="z", node="n-0@a", token=3, lost=1),
        AttemptStages(states={"train": "done"}, status=1, cause="it failed"),
    ],
)
def test_an_attempts_stages_are_read_as_they_were_written_and_in_their_order(rundir: RunDir, known: AttemptStages) -> None:
    write_attempt_stages(rundir, 1, known)
    found = read_attempt_stages(rundir, 1)
    assert found == known
    assert list(found.states) == list(known.states)
    assert read_attempt_stages(rundir, 2) == AttemptStages()
