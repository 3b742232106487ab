"""Whether a run is done, from what is in its directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from zephon.run.data_end import DataEnd, write_data_end
from zephon.run.directory import RunDir
from zephon.run.finished import missing_at_end
from zephon.run.ledger import Ledger


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    return RunDir(str(tmp_path))


def record(rundir: RunDir, *, to: int) -> None:
    with Ledger(rundir.path("ledger.jsonl")) as ledger:
        for step in range(ledger.steps, to):
            ledger.append(step=step, digest=bytes(32), lanes=[bytes(32)])


def save(rundir: RunDir, step: int, *, complete: bool = True) -> None:
    rundir.write_json("checkpoints", f"step-{step:08d}", "COMPLETE" if complete else "meta.json", data={})


def test_last_step_and_complete_checkpoint_make_a_run_done(rundir: RunDir) -> None:
    assert missing_at_end(rundir, 30) == "the ledger has 0 of 30 steps"
    record(rundir, to=29)
    assert missing_at_end(rundir, 30) == "the ledger has 29 of 30 steps"
    record(rundir, to=30)
    assert missing_at_end(rundir, 30) == "the newest complete checkpoint is none and the last step is 30"
    save(rundir, 20)
    save(rundir, 30, complete=False)
    assert missing_at_end(rundir, 30) == "the newest complete checkpoint is of step 20 and the last step is 30"
    save(rundir, 30)
    assert missing_at_end(rundir, 30) == ""


def test_a_checkpoint_without_its_steps_in_the_ledger_is_no_end(rundir: RunDir) -> None:
    save(rundir, 30)
    assert missing_at_end(rundir, 30) == "the ledger has 0 of 30 steps"


def test_where_the_data_ended_is_the_end_and_no_other_step(rundir: RunDir) -> None:
    write_data_end(rundir, DataEnd(step=12, steps=30, attempt=1))
    record(rundir, to=11)
    save(rundir, 12)
    assert missing_at_end(rundir, 30) == "the ledger has 11 of 30 steps"
    record(rundir, to=12)
    assert missing_at_end(rundir, 30) == ""
    record(rundir, to=13)
    assert missing_at_end(rundir, 30) == "the ledger has 13 of 30 steps", "more data came, and the run goes on"
