"""The state of an attempt is read as it was written, here and from elsewhere."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.run.samples import RESIZED
from zephon.run.attempt import attempt_directory
from zephon.run.directory import RunDir
from zephon.run.state import AttemptState, Counts, State, ended_as, read_copy, read_state, write_state

STATE = AttemptState(
    app_id="toy-0001-x",
    state="RUNNING",
    message="stage train",
    target=2,
    members=("node-0@1", "node-1@1"),
    generation=2,
    resized=RESIZED,
    counts=Counts(failures=1, lost=2, resizes=3),
    stage="train",
    stages={"train": "running", "evaluate": "waiting", "a-report": "waiting"},
    pid=7,
    agents={"node-0@1": 8, "node-1@1": None},
    time=1.5,
)


@pytest.mark.parametrize("state", [STATE, AttemptState(app_id="x", state="QUEUED")])
def test_a_state_is_read_as_it_was_written_with_its_stages_in_order(tmp_path: Path, state: AttemptState) -> None:
    rundir = RunDir(str(tmp_path / "run"))
    assert read_state(rundir, 1) is None
    write_state(rundir, 1, state, copy=True)
    found = read_state(rundir, 1)
    assert found == state
    assert list(found.stages) == list(state.stages)


def test_a_run_directory_elsewhere_gets_a_copy_when_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    rundir = RunDir(f"memory://state-{os.getpid()}-{time.time_ns()}")
    write_state(rundir, 1, STATE, copy=False)
    assert (read_state(rundir, 1), read_copy(rundir, 1)) == (STATE, None)
    write_state(rundir, 1, STATE, copy=True)
    assert read_copy(rundir, 1) == STATE


def test_where_no_second_file_can_be_written_the_state_goes_into_the_blocks_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rundir = RunDir(str(tmp_path / "run"))
    write_state(rundir, 1, STATE, copy=False)
    failed = AttemptState(app_id="toy-0001-x", state="FAILED", status=1)
    monkeypatch.setattr(RunDir, "write_bytes", _no_space)
    write_state(rundir, 1, failed, copy=False)
    assert read_state(rundir, 1) == failed
    assert [path.name for path in attempt_directory(rundir, 1).iterdir()] == ["supervisor.json"]


def _no_space(*_: object, **__: object) -> None:
    raise OSError(28, os.strerror(28))


@pytest.mark.parametrize(("status", "state"), [(0, "DONE"), (143, "STOPPED"), (1, "FAILED"), (65, "FAILED")])
def test_an_exit_status_names_the_state(status: int, state: State) -> None:
    assert ended_as(status) == state
    assert AttemptState(app_id="x", state=state).ended
