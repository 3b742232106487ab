"""Small files of a run directory: what their writer writes is what their reader reads, on a disk and in an object store."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from zephon.run.calibration import forget_calibration, read_calibration, write_calibration
from zephon.run.contract_file import Contract, has_contract, read_contract, write_contract
from zephon.run.data_end import DataEnd, ended_at, read_data_end, write_data_end
from zephon.run.directory import RunDir
from zephon.run.evaluation import HeldOutLoss, read_evaluation, write_evaluation
from zephon.run.generation import Generation, claim, read_generation
from zephon.run.handle import Handle, read_handle, write_handle
from zephon.run.progress import Progress, drain_warning, read_progress, write_progress
from zephon.run.stop import read_stop, write_stop
from zephon.run.target import read_target, write_target
from zephon.types import Sampled


@pytest.fixture(params=["file", "memory"])
def rundir(request: pytest.FixtureRequest, tmp_path: Path) -> RunDir:
    return RunDir(str(tmp_path) if request.param == "file" else f"memory://{tmp_path.name}-{time.time_ns()}")


def test_progress_is_that_of_its_attempt(rundir: RunDir) -> None:
    assert read_progress(rundir, 2) is None
    progress = Progress(step=3, steps=9, time=12.5, generation=2, world_size=4, began=1, recorded=5, step_s=0.5, pace_s=0.4)
    write_progress(rundir, 2, progress)
    assert read_progress(rundir, 2) == progress
    assert read_progress(rundir, 1) is None
    assert progress.left_s == pytest.approx(2.4)


def test_a_limit_for_a_drain_that_is_near_what_a_save_takes_is_warned_of_with_what_to_set() -> None:
    assert drain_warning(save_s=None, step_s=9.0, drain_s=1.0) == "", "no save was measured yet"
    assert drain_warning(save_s=30.0, step_s=10.0, drain_s=60.0) == ""
    assert drain_warning(save_s=30.5, step_s=10.0, drain_s=60.0) == (
        "a drain may lose steps: a step and its save take 40.5 s and elastic.drain_s=60; set at least 61"
    )


def test_a_generation_names_its_nodes_in_the_order_of_their_ranks(rundir: RunDir) -> None:
    assert read_generation(rundir) is None
    generation = Generation(attempt=1, generation=7, nodes=("node-1@a", "node-0@b"), world_size=4, time=12.5)
    claim(rundir, generation)
    assert read_generation(rundir) == generation


def test_the_last_rescale_counts(rundir: RunDir) -> None:
    assert read_target(rundir, 1) is None
    for nodes in (2, 3):
        write_target(rundir, 1, nodes)
    target = read_target(rundir, 1)
    assert target is not None
    assert target.nodes == 3


def test_every_stop_differs_from_the_one_before(rundir: RunDir) -> None:
    assert read_stop(rundir, 1) is None
    write_stop(rundir, 1)
    first = read_stop(rundir, 1)
    time.sleep(0.002)
    write_stop(rundir, 1)
    assert None is not first != read_stop(rundir, 1)


def test_a_handle_says_who_got_the_attempt(rundir: RunDir) -> None:
    assert read_handle(rundir, 1) is None
    handle = Handle(scheduler="local", handle="local://zephon/exp1-0001", worker="zephon.train", time=12.5)
    write_handle(rundir, 1, handle)
    assert read_handle(rundir, 1) == handle


def test_the_end_of_the_data_says_what_was_dropped_after_it(rundir: RunDir) -> None:
    assert (read_data_end(rundir), ended_at(rundir)) == (None, None)
    end = DataEnd(step=61, steps=100, attempt=2, dropped={"short": {"count": 3, "first": [["docs", 0, 7]]}})
    write_data_end(rundir, end)
    assert (read_data_end(rundir), ended_at(rundir)) == (end, 61)


def test_a_run_is_calibrated_until_that_is_forgotten(rundir: RunDir) -> None:
    forget_calibration(rundir)
    assert read_calibration(rundir) is None
    write_calibration(rundir, {"docs": Sampled(100, 400, 9000), "web": Sampled(0, 0)})
    assert read_calibration(rundir) == {"docs": Sampled(100, 400, 9000), "web": Sampled(0, 0)}
    forget_calibration(rundir)
    assert read_calibration(rundir) is None


def test_an_evaluation_says_which_step_it_is_of(rundir: RunDir) -> None:
    assert read_evaluation(rundir) is None
    found = HeldOutLoss(step=30, loss=2.5, tokens=1000)
    write_evaluation(rundir, found)
    assert read_evaluation(rundir) == found


def test_a_contract_keeps_all_that_was_promised_and_allowed(rundir: RunDir) -> None:
    assert not has_contract(rundir)
    plain = Contract(pinned={"data.seed": 0, "data.kinds": ["a"]}, guarded={"model.dim": 64})
    change = {"field": "model.dim", "kind": "guarded", "run": 32, "now": 64, "attempt": 2, "time": 12.5}
    files = {"web": {"files": 1, "size": 1400, "sha256": "ab"}}
    fork = Contract(pinned={}, guarded={}, allowed=(change,), files=files, parent={"run": "exp1", "step": 9, "changes": []})
    for contract in (plain, fork):
        write_contract(rundir, contract)
        assert read_contract(rundir) == contract
    assert has_contract(rundir)


@pytest.mark.parametrize("text", ["", '{"step": 3', "[]", '{"nodes": 3}'])
def test_a_file_that_is_torn_or_of_something_else_is_as_none(tmp_path: Path, text: str) -> None:
    rundir = RunDir(str(tmp_path))
    path = tmp_path / "attempts" / "0001" / "progress.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert read_progress(rundir, 1) is None


def test_keys_of_another_version_are_passed_over(tmp_path: Path) -> None:
    rundir = RunDir(str(tmp_path))
    rundir.write_json("attempts", "0001", "target.json", data={"nodes": 3, "time": 1.5, "by": "somebody"})
    target = read_target(rundir, 1)
    assert target is not None
    assert (target.nodes, target.time) == (3, 1.5)
