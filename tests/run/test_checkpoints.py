"""Checkpoints as every process sees them: which there are, which are complete, what they say of themselves."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from zephon.run import checkpoints
from zephon.run.checkpoints import Marker, Meta, SavedFile
from zephon.run.directory import RunDir


@pytest.fixture(params=["file", "memory"])
def rundir(request: pytest.FixtureRequest, tmp_path: Path) -> RunDir:
    return RunDir(str(tmp_path) if request.param == "file" else f"memory://{tmp_path.name}-{time.time_ns()}")


def meta(step: int) -> Meta:
    return Meta(
        step=step,
        tokens=step * 64,
        loader={"version": 1, "step": step},
        pinned={"data.seed": 0},
        guarded={"model.dim": 8},
        rng={"scheme": "seed-and-step"},
        skipped=(2, 3),
        average=1.5,
    )


def save(rundir: RunDir, step: int, *, complete: bool = True) -> Marker:
    checkpoints.begin(rundir, meta(step))
    marker = Marker(step=step, world_size=2, files={"__0_0.distcp": SavedFile(8, "ab" * 32)})
    if complete:
        checkpoints.write_marker(rundir, marker)
    return marker


def test_a_run_without_checkpoints_has_none(rundir: RunDir) -> None:
    assert (checkpoints.steps_on_disk(rundir), checkpoints.complete_steps(rundir)) == ([], [])
    assert checkpoints.newest_checkpoint(rundir) == -1


def test_the_newest_checkpoint_is_the_newest_complete_one(rundir: RunDir) -> None:
    save(rundir, 10), save(rundir, 20), save(rundir, 30, complete=False)
    rundir.write_json("checkpoints", "step-tmp", "COMPLETE", data={})
    assert checkpoints.steps_on_disk(rundir) == [10, 20, 30]
    assert checkpoints.complete_steps(rundir) == [10, 20]
    assert checkpoints.newest_checkpoint(rundir) == 20


def test_what_a_save_writes_is_what_a_restart_reads(rundir: RunDir) -> None:
    marker = save(rundir, 10)
    assert checkpoints.read_marker(rundir, 10) == marker
    assert checkpoints.read_meta(rundir, 10) == meta(10)
    save(rundir, 20, complete=False)
    assert checkpoints.read_marker(rundir, 20) is None


def test_a_save_begins_in_the_place_of_an_interrupted_one(rundir: RunDir) -> None:
    save(rundir, 10, complete=False)
    rundir.write_bytes("checkpoints", checkpoints.name_of(10), "__7_0.distcp", data=b"left over")
    save(rundir, 10)
    assert not rundir.fs.exists(checkpoints.path_of(rundir, 10, "__7_0.distcp"))


def test_a_removed_checkpoint_is_gone(rundir: RunDir) -> None:
    save(rundir, 10), save(rundir, 20)
    checkpoints.remove(rundir, 20)
    assert checkpoints.steps_on_disk(rundir) == [10]


def test_a_checkpoint_knows_when_it_was_completed(rundir: RunDir) -> None:
    before = time.time()
    save(rundir, 10)
    assert before - 2 <= checkpoints.completed_at(rundir, 10) <= time.time() + 2
