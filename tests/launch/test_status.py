"""The status of a run, from files alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from rich.console import Console

from tests.launch.written import Written
from zephon.errors import ConfigError
from zephon.launch import start as session
from zephon.launch.cli.display import one_line
from zephon.launch.cli.main import main
from zephon.launch.cli.views import status_table
from zephon.launch.status import find_run, status_of
from zephon.run.data_end import DataEnd, write_data_end
from zephon.run.directory import RunDir
from zephon.run.environment import environment, write_environment
from zephon.run.events import EventLog
from zephon.run.specs import write_spec
from zephon.train.metrics import ProgressFile


def test_states_from_start_to_end(written: Written) -> None:
    assert status_of(written.rundir).state == "UNSUBMITTED"
    assert status_of(written.supervisor(state="STARTING").rundir).state == "STARTING"
    assert status_of(written.supervisor().rundir).state == "STARTING", "no step yet"
    written.progress()
    assert status_of(written.rundir).state == "TRAINING"
    assert status_of(written.supervisor(members=("node-0@1",)).rundir).state == "DEGRADED"
    written.supervisor().progress(age_s=31.0)
    assert status_of(written.rundir).state == "STALLED"
    for state in ("DRAINING", "DONE", "STOPPED", "FAILED"):
        assert status_of(written.supervisor(state=state).rundir).state == state


def test_a_run_whose_data_ended_before_its_last_step_says_so(written: Written) -> None:
    write_data_end(written.progress(61).rundir, DataEnd(step=61, steps=100, attempt=1))
    assert status_of(written.rundir).state == "DONE", "nothing is left to do, whoever has ended"
    status = status_of(written.supervisor(state="DONE").rundir)
    assert (status.state, status.message) == ("DONE", "the data ended after 61 of 100 steps")
    assert one_line(status).endswith("the data ended after 61 of 100 steps")
    later = status_of(written.progress(40).supervisor().rundir)
    assert (later.state, later.message) == ("TRAINING", ""), "gone back to a checkpoint"


def test_a_supervisor_that_was_killed_reads_as_failed_and_not_as_running(written: Written) -> None:
    written.supervisor().progress()
    written.close()
    status = status_of(written.rundir)
    assert (status.state, status.status) == ("FAILED", 1)
    assert "killed" in status.message


def test_speed_checkpoint_and_the_last_error_are_shown(written: Written) -> None:
    written.supervisor().progress(step=40)
    written.rundir.write_json("checkpoints", "step-00000030", "COMPLETE", data={})
    events = EventLog(written.rundir, 1, "test")
    error = {"time": 1.0, "rank": 3, "node": "node-1@1", "status": 1, "message": "ValueError: boom"}
    events.write("workers_exited", node="node-1@1", generation=1, exits={"3": 1}, error=error)
    status = status_of(written.rundir)
    assert (status.step, status.steps, status.loss, status.checkpoint) == (40, 100, 2.5, 30)
    assert status.checkpoint_age_s is not None
    assert status.checkpoint_age_s < 60
    assert "rank 3 on node-1@1" in status.error
    assert "ValueError: boom" in status.error
    events.write("finish", status=1, cause="rank 3: 4 crashes")
    assert status_of(written.rundir).error == "rank 3: 4 crashes"


def test_status_shows_an_error_with_its_three_parts_and_a_list_in_one_line_each_once(
    written: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "rank 0: DataError: row 3 is broken\n  why it matters: it would be left out\n  fix: correct it"
    written.supervisor(state="FAILED", status=65, message=text)
    EventLog(written.rundir, 1, "test").write("finish", status=65, cause=text)
    runs = f"runs={Path(written.rundir.root).parent}"
    for verb in ("status", "list"):
        assert main([verb, runs]) == 0
        shown = capsys.readouterr().out
        assert shown.count("row 3 is broken") == 1, shown
        assert ("fix: correct it" in shown) == (verb == "status"), "a list has one line a run"


def test_runs_are_found_by_name_by_path_and_as_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    runs = str(tmp_path / "runs")
    for name, started in (("exp-old", 1.0), ("exp-new", 2.0)):
        write_environment(Written(tmp_path, name=name).rundir, 1, dataclasses.replace(environment([], {}), time=started))
    assert find_run("exp-old", runs).root.endswith("exp-old")
    assert find_run(f"{runs}/exp-old", "elsewhere").root.endswith("exp-old")
    assert find_run(None, runs).root.endswith("exp-new")
    with pytest.raises(ConfigError, match="did you mean 'exp-new'"):
        find_run("exp-nw", runs)
    with pytest.raises(ConfigError, match="no run in"):
        find_run(None, str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="holds no run"):
        status_of(RunDir(str(tmp_path)))


def test_a_run_whose_directory_only_the_nodes_see_is_found_in_the_launchers_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zephon.launch.config.compose import compose

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    spec = compose(["conf=exp1", "scheduler=kubernetes", "runs=/only/on/nodes"]).spec
    rundir = session.rundir_of(spec)
    assert rundir.root.startswith(str(tmp_path / "state"))
    assert session.url_of(spec, rundir) == "/only/on/nodes/exp1"
    write_spec(rundir, 1, spec)
    assert find_run("exp1", "/only/on/nodes").root == rundir.root


def test_the_time_left_is_shown_from_what_the_trainer_writes(written: Written, capsys: pytest.CaptureFixture[str]) -> None:
    written.supervisor()
    rank_0 = ProgressFile(written.rundir, 1, 100)
    for step, seconds in enumerate((50.0, 3.0, 3.0)):
        rank_0.write(
            step,
            {
                "loss": 2.5,
                "tokens_per_s": 10.0,
                "lr": 1e-3,
                "digest": "ab",
                "world_size": 2,
                "generation": 1,
                "seconds": {"step": seconds},
                "total_tokens": 3000,
                "dropped_so_far": {"pack_flat: longer than max_length": {"documents": 2, "tokens": 1000}},
            },
        )
    rank_0.close()
    status = status_of(written.rundir)
    assert (status.step, status.eta_s) == (3, 97 * 3.0)
    assert "  4:51 left  " in one_line(status)
    assert "  3 s/step  " in one_line(status)
    assert "  lr 1.00e-03  " in one_line(status)
    Console(width=200).print(status_table(status))
    shown = capsys.readouterr().out
    assert "4 min 51 s left" in shown
    assert "pack_flat: longer than max_length: 2 documents, 1,000 tokens (25.0%)" in shown
