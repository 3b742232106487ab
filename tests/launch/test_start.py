"""Starts, resumes, leases and the foreground, with real agents and the toy worker."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.agent.toy import WORKER, Toy, processes_of, toy_spec
from zephon.agent.channel import NONCE
from zephon.errors import ConfigError, ContractError, StateError
from zephon.launch import control
from zephon.launch import start as session
from zephon.launch.backends.local.index import apps
from zephon.launch.status import LIVE
from zephon.launch.stored import changed
from zephon.run.checkpoints import Marker, write_marker
from zephon.run.contract_file import read_contract, write_contract
from zephon.run.directory import RunDir
from zephon.run.environment import read_environment
from zephon.run.lease import read_lease
from zephon.run.specs import new_attempt, newest_spec
from zephon.run.supervisor_files import read_control_port

Maker = Callable[..., Toy]
pytestmark = pytest.mark.slow  # every test starts real agents, which import torch
LONG = 100_000


def test_a_stopped_run_is_resumed_from_its_record_alone_and_a_finished_one_is_left_alone(toy: Maker) -> None:
    run = toy(nodes=1, steps=30, step_s=0.05).start()
    run.wait_step(4)
    assert control.stop(run.rundir).resizes == 0, "a stop is no resize"
    with pytest.raises(ContractError, match=r"data\.seed is 0 in the run and 5 now"):
        run.resume("data.seed=5")
    run.resume("nodes=2", "trainer.microbatch_size=4")
    assert run.wait_end().state == "DONE"
    assert run.lines()[-1]["world_size"] == 2
    for again in (run.start, run.resume):
        before = run.rundir.attempts()
        again()
        assert run.rundir.attempts() == before == [1, 2]
    finished = session.resume(run.rundir)
    assert finished.handle is None
    assert "all 30 steps are done" in finished.note
    record = read_environment(run.rundir, 2)
    assert record is not None
    assert record.packages["torch"]
    assert record.overrides == ("nodes=2", "trainer.microbatch_size=4")
    logs = sorted(path.name for path in Path(run.rundir.path("attempts", "0001", "logs", "node-0")).iterdir())
    assert logs == ["agent.log", "rank-0.log"], "an earlier attempt's logs stay"


def test_a_run_goes_on_where_its_directory_lies_now_from_any_working_directory(
    toy: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = toy(nodes=1, steps=30, step_s=0.05).start()
    run.wait_step(4)
    trained = control.stop(run.rundir).step
    moved, elsewhere = tmp_path / "archive" / "renamed", tmp_path / "elsewhere"
    for directory in (moved.parent, elsewhere):
        directory.mkdir()
    Path(run.rundir.url).rename(moved)
    first = moved / "attempts" / "0001" / "spec.json"
    first.write_text(json.dumps({**json.loads(first.read_text()), "runs": "runs"}))  # as `zephon run` stores it by default
    monkeypatch.chdir(moved.parent)
    run.rundir = RunDir("renamed")
    with pytest.raises(ConfigError, match="name=other is another run than renamed"):
        run.resume("name=other")
    monkeypatch.chdir(elsewhere)
    run.rundir = RunDir(str(moved))
    run.resume()
    assert run.wait_end().state == "DONE"
    assert run.rundir.attempts() == [1, 2]
    assert [line["step"] for line in run.lines()].count(trained - 1) == 1, "nothing was trained again"
    assert list(elsewhere.iterdir()) == [], "no run began anew"


def test_a_running_run_cannot_be_resumed_or_started_again_and_a_stranger_is_refused(toy: Maker) -> None:
    run = toy(nodes=1, steps=LONG, step_s=0.05).start()
    run.wait_step(1)
    with pytest.raises(ConfigError, match="is running"):
        session.resume(run.rundir)
    with pytest.raises(ConfigError, match=r"is held by toy-0001-\w+ \(pid \d+"):
        session.start(run.spec, worker=WORKER)
    import socket

    port = read_control_port(run.rundir, 1)
    assert port is not None
    with socket.create_connection(("127.0.0.1", port.port)) as link:
        link.sendall(bytes(64) + b'{"verb": "stop"}\n')
        assert len(link.makefile("rb").read()) == NONCE, "it says a random number and nothing else"
    assert run.status().state == "TRAINING"


def test_of_two_resumes_in_one_moment_one_wins_and_the_other_is_shown_the_holder(toy: Maker) -> None:
    run = toy(nodes=1, steps=LONG, step_s=0.05).start()
    run.wait_step(1)
    control.stop(run.rundir)
    outcomes: list[str] = []

    def resume() -> None:
        try:
            session.resume(run.rundir, worker=WORKER)
            outcomes.append("won")
        except ConfigError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=resume) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outcome == "won" for outcome in outcomes) == [False, True], outcomes
    assert any("held by" in outcome or "is running" in outcome for outcome in outcomes)
    assert run.rundir.attempts() == [1, 2]


def test_what_was_typed_for_one_attempt_about_damaged_checkpoints_is_not_inherited(tmp_path: Path) -> None:
    spec = toy_spec(tmp_path)
    rundir = session.rundir_of(spec)
    for policy in ("latest", "last_good"):
        new_attempt(rundir, dataclasses.replace(spec, checkpoint=dataclasses.replace(spec.checkpoint, resume=policy)))
    assert newest_spec(rundir).checkpoint.resume == "last_good"
    assert session._as_begun(newest_spec(rundir), rundir).checkpoint.resume == "latest"


def test_a_start_is_refused_where_all_checkpoints_of_the_run_are_gone(tmp_path: Path) -> None:
    spec = toy_spec(tmp_path)
    rundir = session.rundir_of(spec)
    write_marker(rundir, Marker(step=10, world_size=1, files={}))
    rundir.fs.rm(rundir.path("checkpoints"), recursive=True)
    with pytest.raises(StateError, match="no complete checkpoint, and one was completed at step 10"):
        session.start(spec, worker=WORKER)
    assert rundir.attempts() == []


def test_eight_starts_at_once_make_eight_attempts(tmp_path: Path) -> None:
    spec = toy_spec(tmp_path)
    rundir = session.rundir_of(spec)
    made: list[int] = []
    threads = [threading.Thread(target=lambda: made.append(new_attempt(rundir, spec))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == list(range(1, 9))


def test_a_fork_starts_from_the_parents_checkpoint_and_records_the_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = toy_spec(tmp_path, name="parent")
    rundir = session.rundir_of(spec)
    from zephon.launch.contract import Difference, contract_of

    write_contract(rundir, contract_of(spec))
    rundir.write_json("checkpoints", "step-00000010", "COMPLETE", data={})
    other = changed(spec, ["data.seed=9"])
    forked, parent = session._forked(other, "child")
    assert forked.name == "child"
    assert forked.model.init_from == session.rundir_of(forked).path("parent")
    assert (parent.step, parent.run) == (10, rundir.url)
    assert parent.changes == (Difference("pinned", "data.seed", 0, 9),)


@pytest.mark.slow
def test_a_fork_trains_on_from_its_parents_weights_with_other_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from zephon.launch.config.compose import compose

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    overrides = ["conf=bytes", f"runs={tmp_path / 'runs'}", "name=parent", "trainer.steps=20", "checkpoint.every=20"]
    spec = compose(
        [*overrides, "pipeline.context_length=16", "model.layers=1", "model.dim=16", "trainer.tensorboard=false"]
    ).spec
    losses = []
    for name, changes in (("parent", []), ("child", ["data.seed=5"])):
        started = session.start(changed(spec, changes), fork=name if changes else None)
        ended = control.wait_for(started.rundir, lambda now: now.state not in LIVE, 120, "to end")
        assert (ended.state, ended.step) == ("DONE", 20), ended
        metrics = Path(started.rundir.path("metrics.jsonl")).read_text().splitlines()
        losses.append([json.loads(line)["loss"] for line in metrics])
        assert started.rundir.root.endswith(name)
    parent = read_contract(started.rundir).parent
    assert parent is not None
    assert parent["step"] == 20
    assert losses[1][0] < losses[0][0], "the fork did not begin from the trained weights"


def test_stored_experiments_change_by_single_fields_only(tmp_path: Path) -> None:
    spec = toy_spec(tmp_path)
    assert changed(spec, ["nodes=3", "elastic.drain_s=7"]) == dataclasses.replace(
        spec, nodes=3, elastic=dataclasses.replace(spec.elastic, drain_s=7.0)
    )
    for override in ("tokenizer=bytes", "nodess=3", "nodes=x", "+nodes=3"):
        with pytest.raises(ConfigError):
            changed(spec, [override])


def command(run: Toy, *argv: str) -> list[str]:
    return [sys.executable, "-m", "zephon.launch", *argv, f"runs={Path(run.rundir.root).parent}"]


def foreground(run: Toy, tmp_path: Path, **options: Any) -> subprocess.Popen[bytes]:
    """A foreground ``run`` of the toy as a user would start it."""
    tree = {key: value for key, value in run.spec.to_dict().items() if key not in ("runs", "scheduler")}
    path = tmp_path / "mine.json.yaml"
    path.write_text(json.dumps(tree))
    run._export()
    argv = command(run, f"conf={path}", "--worker", WORKER)
    # A terminal's child: tests that run under nohup or in a shell's background would hand down that these are ignored.
    listens = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGHUP, signal.SIGINT)}
    try:
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    finally:
        for number, listener in listens.items():
            signal.signal(number, listener)


def test_ctrl_c_in_the_foreground_saves_stops_and_prints_how_to_go_on(toy: Maker, tmp_path: Path) -> None:
    run = toy(nodes=1, steps=LONG, step_s=0.05, save_every=LONG)
    with foreground(run, tmp_path, start_new_session=True) as process:
        while not run.rundir.attempts():
            assert process.poll() is None
            time.sleep(0.1)
        run.wait_step(3)
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 143, output.decode()
    assert b"go on with: zephon resume toy" in output
    status = run.status()
    assert (status.state, status.checkpoint) == ("STOPPED", status.step)


def test_a_closed_terminal_and_a_killed_launcher_leave_the_run_running(toy: Maker, tmp_path: Path) -> None:
    run = toy(nodes=1, steps=LONG, step_s=0.05)
    with foreground(run, tmp_path, start_new_session=True) as process:
        while not run.rundir.attempts():
            assert process.poll() is None
            time.sleep(0.1)
        run.wait_step(2)
        os.killpg(process.pid, signal.SIGHUP)
        process.communicate(timeout=30)
    reached = run.status().step
    status = run.wait_step(reached + 5)
    assert status.state == "TRAINING"
    app = apps()[0].app_id
    assert len(processes_of(app)) >= 4
    shown = subprocess.run(command(run, "status", "toy", "--json"), capture_output=True, check=True)
    assert json.loads(shown.stdout)["state"] == "TRAINING"
    stopped = subprocess.run(command(run, "stop", "toy"), capture_output=True, check=False)
    assert stopped.returncode == 0, stopped.stderr
    assert processes_of(app) == []


def test_the_same_command_with_another_size_rescales_the_running_run(toy: Maker, tmp_path: Path) -> None:
    run = toy(nodes=1, steps=LONG, step_s=0.05).start()
    run.wait_step(2)
    run.spec = dataclasses.replace(run.spec, nodes=2)
    with foreground(run, tmp_path) as process:
        output, _ = process.communicate(timeout=90)
    assert process.returncode == 0, output.decode()
    assert b"1 -> 2 nodes" in output
    assert b"0 steps lost" in output
    run.spec = dataclasses.replace(run.spec, global_batch_size=16)
    with foreground(run, tmp_path) as process:
        output, _ = process.communicate(timeout=90)
    assert process.returncode == 65
    assert b"global_batch_size" in output


def test_a_run_that_has_just_been_started_takes_a_rescale_after_its_first_step(toy: Maker) -> None:
    run = toy(nodes=1, steps=LONG, step_s=0.05).start()
    status = control.rescale(run.rundir, 2)
    assert (status.nodes, status.world_size, status.state) == (2, 2, "TRAINING")
    assert status.resizes == 1


def test_a_worker_that_cannot_be_imported_is_refused_with_the_log(toy: Maker) -> None:
    run = toy(nodes=1)
    with pytest.raises(ConfigError, match=r"worker module 'no\.such\.module' was not found"):
        session.start(run.spec, worker="no.such.module")
    assert read_lease(run.rundir) is None


def test_a_stop_while_nodes_still_import_is_at_once_and_leaves_nothing_running(toy: Maker) -> None:
    run = toy(nodes=2, steps=LONG, step_s=0.05).start()
    began = time.monotonic()
    status = control.stop(run.rundir)
    assert time.monotonic() - began < 5.0, "less than importing torch takes with other tests beside it"
    assert (status.state, status.step) == ("STOPPED", 0)
    _, alive = psutil.wait_procs(processes_of(status.app_id), timeout=5.0)  # the supervisor says its end, then ends
    assert not alive
