"""Faults that users of other launchers have reported; tests/launch/cases.md says which."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.toy import WORKER, Toy
from zephon.errors import ConfigError
from zephon.launch import control
from zephon.launch.config.compose import compose
from zephon.launch.status import run_names
from zephon.run.directory import RunDir

Maker = Callable[..., Toy]
LONG = 100_000


def command(run: Toy, tmp_path: Path, *more: str) -> list[str]:
    """A foreground ``run`` of the toy as a user would type it."""
    tree = {key: value for key, value in run.spec.to_dict().items() if key not in ("runs", "scheduler")}
    path = tmp_path / f"{run.spec.name}.yaml"
    path.write_text(json.dumps(tree))
    run._export()
    runs = Path(run.rundir.root).parent
    return [sys.executable, "-m", "zephon.launch", f"conf={path}", f"runs={runs}", "--worker", WORKER, *more]


def test_m09_an_override_of_a_group_that_is_not_there_is_refused_also_when_the_user_adds_the_group(tmp_path: Path) -> None:
    (tmp_path / "extra").mkdir()
    for name, seed in (("x", 5), ("y", 6)):
        (tmp_path / "extra" / f"{name}.yaml").write_text(f"# @package _global_\ntrainer: {{seed: {seed}}}\n")
    given = "global_batch_size: 16\ntrainer: {steps: 7}\ndata: {datasets: {web: {path: x}}}\n"
    (tmp_path / "mine.yaml").write_text("defaults:\n  - override /extra: x\n" + given)
    for overrides in (["conf=mine"], ["conf=mine", "+extra=y"]):
        with pytest.raises(ConfigError, match=r"override 'extra'"):
            compose(overrides, config_dir=str(tmp_path))
    (tmp_path / "plain.yaml").write_text(given)
    assert compose(["conf=plain", "+extra=y"], config_dir=str(tmp_path)).spec.trainer.seed == 6


@pytest.mark.slow
def test_o07_a_terminated_shell_around_the_launcher_costs_no_step(toy: Maker, tmp_path: Path) -> None:
    run = toy(nodes=1, steps=LONG, step_s=0.05, save_every=LONG)
    line = f"{shlex.join(command(run, tmp_path))} | tee {tmp_path / 'log'}"
    with subprocess.Popen(["sh", "-c", line], start_new_session=True, stdout=subprocess.DEVNULL) as shell:
        deadline = time.monotonic() + 60
        while not run.rundir.attempts() and time.monotonic() < deadline:
            time.sleep(0.1)
        run.wait_step(2)
        shell.terminate()
        shell.wait(30)
    reached = run.status().step
    assert run.wait_step(reached + 3).state == "TRAINING"
    stopped = control.stop(run.rundir)
    assert (stopped.state, stopped.checkpoint) == ("STOPPED", stopped.step)


@pytest.mark.slow
def test_p07_a_crash_a_drain_and_a_kill_have_three_reasons(toy: Maker) -> None:
    budget = {"failure_budget": 0}
    crashed = toy(name="crashed", nodes=1, steps=LONG, step_s=0.02, faults={"3": "raise"}, elastic=budget).start()
    killed = toy(name="killed", nodes=1, steps=LONG, step_s=0.02, faults={"3": "kill"}, elastic=budget).start()
    drained = toy(name="drained", nodes=1, steps=LONG, step_s=0.02).start()
    drained.wait_step(2)
    control.stop(drained.rundir)
    ends = {run.spec.name: run.wait_end() for run in (crashed, killed, drained)}
    assert "RuntimeError: toy fault at step 3" in ends["crashed"].error
    assert "status -9" in ends["killed"].error
    assert (ends["drained"].state, ends["drained"].status, ends["drained"].error) == ("STOPPED", 143, "")
    assert [ends[name].state for name in ("crashed", "killed")] == ["FAILED", "FAILED"]
    assert all(end.step > 0 and end.attempt == 1 and end.progress_age_s is not None for end in ends.values())


@pytest.mark.slow
def test_s05_a_sweep_that_is_resumed_twice_at_once_runs_each_point_once(toy: Maker, tmp_path: Path) -> None:
    run = toy(nodes=1, steps=20, step_s=0.02)
    argv = command(run, tmp_path, "-m", "data.seed=1,2", "--limit", "2")
    both = [subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)]
    told = [each.communicate(timeout=150)[0] for each in both]
    runs = str(Path(run.rundir.root).parent)
    names = run_names(runs)
    assert len(names) == 2, told
    rundirs = [RunDir(f"{runs}/{name}") for name in names]
    for rundir in rundirs:
        steps = [json.loads(line)["step"] for line in Path(rundir.path("toy.jsonl")).read_text().splitlines()]
        assert steps == list(range(1, 21)), told
        assert rundir.exists("checkpoints", "step-00000020", "COMPLETE")
    assert [each.returncode for each in both] == [0, 0], told
