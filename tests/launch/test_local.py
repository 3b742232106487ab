"""The local scheduler through TorchX's own Runner, and from other processes."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from torchx.runner import Runner
from torchx.specs import AppState

from tests.agent.toy import WORKER, Toy, processes_of
from zephon.errors import ConfigError
from zephon.launch import control
from zephon.launch import start as session
from zephon.launch.backends.local import scheduler as local
from zephon.launch.backends.local.index import app_id_of, apps, prune
from zephon.run.attempt import index_dir
from zephon.run.supervisor_files import LocalRequest

Maker = Callable[..., Toy]
pytestmark = pytest.mark.slow  # every test starts real agents, which import torch


def runner() -> Runner:
    return Runner("test", {"local": local.create_scheduler})


def test_a_dry_run_prints_what_a_submit_sends_and_starts_nothing(toy: Maker) -> None:
    run = toy(nodes=3)
    first, second = (session.request_of(run.spec, run.rundir, 1, WORKER) for _ in range(2))
    assert first == second
    assert isinstance(first, LocalRequest)
    assert (first.nodes, first.worker) == (3, WORKER)
    assert apps() == []
    assert not run.rundir.exists("attempts")


def test_what_the_supervisor_writes_is_what_status_shows(toy: Maker) -> None:
    run = toy(nodes=2, steps=100_000, step_s=0.05).start()
    run.wait_step(2)
    control.rescale(run.rundir, 1)
    run.wait(lambda _: list(run.supervisor().agents) == ["node-0@1"])
    state, status = run.supervisor(), run.status()
    assert (state.state, state.members, state.target, state.stages) == ("RUNNING", ("node-0@1",), 1, {})
    assert state.resized is not None
    assert (state.resized.nodes_before, state.resized.nodes, state.counts.resizes) == (2, 1, 1)
    assert (status.state, status.nodes, status.generation) == ("TRAINING", 1, state.generation)
    assert (status.resize, status.resizes) == (state.resized, 1)
    control.stop(run.rundir)
    state, status = run.supervisor(), run.status()
    assert (state.state, state.status) == (status.state, status.status) == ("STOPPED", 143)


def test_another_process_lists_describes_reads_and_cancels_and_an_unknown_id_is_an_error_at_once(toy: Maker) -> None:
    run = toy(nodes=2, steps=100_000, step_s=0.05).start()
    run.wait_step(2)
    code = """
import sys
from torchx.runner import Runner
from zephon.launch.backends.local import scheduler as local
with Runner("other", {"local": local.create_scheduler}) as runner:
    (app,) = runner.list("local")
    status = runner.status(app.app_handle)
    print(app.state.name, status.state.name, len(status.roles[0].replicas))
    print(sum(1 for _ in runner.log_lines(app.app_handle, "node", 0)) > 0)
    runner.cancel(app.app_handle)
    print(runner.wait(app.app_handle, wait_interval=0.2).state.name)
    print(runner.status("local://other/none"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split("\n")[:4] == ["RUNNING RUNNING 2", "True", "CANCELLED", "None"], done.stdout + done.stderr
    assert run.status().state == "STOPPED"
    with pytest.raises(ConfigError, match="no attempt 'none'"):
        local.LocalScheduler("x").log_iter("none", "node")


def test_the_states_of_a_job_in_torchx_words(toy: Maker) -> None:
    run = toy(nodes=1, steps=3).start()
    run.wait_end()
    failed = toy(nodes=1, name="failed", exit_at_start=65).start()
    failed.wait_end()
    with runner() as torchx:
        states = {app.name: app.state for app in torchx.list("local")}
    assert states == {"toy": AppState.SUCCEEDED, "failed": AppState.FAILED}


def test_attempts_that_are_over_and_runs_that_are_gone_are_forgotten(toy: Maker) -> None:
    run = toy(nodes=1, steps=4, step_s=0.0, exit_at_start=3).start()
    run.wait_end()
    run.settings["exit_at_start"] = None
    run.resume()
    run.wait_end()
    prune()
    assert [entry.attempt for entry in apps()] == [2]
    shutil.move(run.rundir.root, run.rundir.root + "-elsewhere")
    far = dataclasses.replace(apps()[0], app_id="far-0001-0", run="elsewhere://far/away")
    (index_dir() / "far-0001-0.json").write_text(json.dumps(dataclasses.asdict(far)))
    prune()
    assert apps() == [far], "whether a run is there is not known while its store does not answer"


@pytest.mark.parametrize("name", ["my-role.X_y", "n" * 63])
def test_names_with_every_accepted_letter_run(toy: Maker, name: str) -> None:
    run = toy(nodes=1, name=name, steps=2, step_s=0.0).start()
    assert run.wait_end().state == "DONE"
    assert apps()[0].name == name


def test_ids_are_unique_per_directory_and_attempt(toy: Maker, tmp_path: Path) -> None:
    names = {app_id_of("toy", attempt, run) for attempt in range(1, 101) for run in ("/a/toy", "/b/toy")}
    assert len(names) == 200


def test_leftovers_of_a_killed_supervisor_are_found_by_the_next_look(toy: Maker) -> None:
    run = toy(nodes=1, steps=100_000, step_s=0.05).start()
    run.wait_step(1)
    app = apps()[0].app_id
    stray = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env={**os.environ, "ZEPHON_APP_ID": app})
    try:
        os.kill(run.supervisor_pid(), 9)
        deadline = time.monotonic() + 10
        while run.status().state != "FAILED" and time.monotonic() < deadline:
            time.sleep(0.05)
        assert stray.wait(5) == -9
        assert processes_of(app) == []
    finally:
        stray.kill()
        stray.wait()
