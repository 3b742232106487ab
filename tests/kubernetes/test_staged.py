"""A run of all stages on real nodes: stopped, killed and refused in the middle of them, and gone on with."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.conftest import until
from tests.kubernetes.machines import TRAINS_S, Machines, reach
from zephon.launch import control
from zephon.launch import start as session
from zephon.launch.cli.main import main
from zephon.launch.status import RunStatus, status_of
from zephon.run.attempt_stages import read_attempt_stages
from zephon.run.directory import RunDir
from zephon.run.evaluation import read_evaluation
from zephon.run.specs import newest_spec
from zephon.run.stage_records import read_record

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.timeout(900)]

_numbers = itertools.count(1)
ORDER = ["doctor", "calibrate", "first", "train", "evaluate", "last"]
SETTINGS = [
    "conf=bytes",
    "nodes=2",
    "trainer.steps=6",
    "pipeline.context_length=16",
    "model.layers=1",
    "model.dim=16",
    "trainer.tensorboard=false",
    "trainer.eval_tokens=1000",
    "elastic.drain_s=10",
    "elastic.heartbeat_s=2",
    f"stages.order=[{','.join(ORDER)}]",
    *(f"stages.own.{name}.call=tests.launch.own_stages:until_told" for name in ("first", "last")),
    *(f"stages.own.{name}.options.name={name}" for name in ("first", "last")),
    "stages.own.last.inputs=[evaluation.json]",
]
# The stage's process, its parent's parent: the fork server, the agent.
KILL_AGENT = "p=$(cut -d' ' -f4 /proc/{0}/stat) && kill -9 $(cut -d' ' -f4 /proc/$p/stat)"


def tries(rundir: RunDir, name: str) -> list[dict[str, Any]]:
    """Each time that an own stage has begun."""
    return [json.loads(path.read_text()) for path in sorted(Path(rundir.path(name)).glob("try-*.json"))]


def begun(rundir: RunDir, name: str, times: int) -> str:
    """Waits until an own stage has begun for the nth time; returns the pod that has the turn."""

    def running(now: RunStatus) -> bool:
        return len(tries(rundir, name)) == times and now.state == "RUNNING" and now.stages.get(name) == "running"

    reach(rundir, f"{name} has begun, time {times}", running)
    return str(read_attempt_stages(rundir, rundir.attempts()[-1]).node).split("@")[0]


def test_stages_on_a_cluster_survive_stop_loss_and_a_failed_evaluation(
    machines: Machines, capsys: pytest.CaptureFixture[str]
) -> None:
    name = machines.name(f"staged-{next(_numbers)}")
    held = machines.runs / f"{name}-held.jsonl"
    text = "\n".join(json.dumps({"text": f"number {i} is followed by {i + 1}. " * 20}) for i in range(200))
    held.write_text(text)
    rundir = machines.submit(machines.spec(name, *SETTINGS, f"trainer.eval_data.held.path={held}"))
    begun(rundir, "first", 1)
    running = status_of(rundir)
    assert running.stages == dict(zip(ORDER, ["done", "done", "running", "waiting", "waiting", "waiting"], strict=True))
    assert main(["logs", name, f"runs={machines.runs}"]) == 0
    logged = capsys.readouterr().out
    assert "stages/doctor | run directory: ok" in logged
    assert "stage first: runs tests.launch.own_stages:until_told" in logged

    stopped = control.stop(rundir, wait_s=TRAINS_S)
    assert (stopped.state, stopped.stages["first"]) == ("STOPPED", "stopped")
    assert session.resume(rundir).attempt == stopped.attempt
    leading = begun(rundir, "first", 2)
    killed = KILL_AGENT.format(tries(rundir, "first")[-1]["pid"])
    machines.kubectl("exec", leading, "-n", name, "--", "/usr/bin/sh", "-c", killed, check=False)
    assert begun(rundir, "first", 3) != leading

    held.unlink()  # the stage doctor has seen it
    rundir.write_json("first-told.json", data={})
    failed = until("the evaluation has failed", lambda: status_of(rundir), TRAINS_S, holds=lambda now: now.state == "FAILED")
    assert failed.error.startswith("stage evaluate failed: ")
    assert str(held) in failed.error
    assert failed.stages == dict(zip(ORDER, ["done", "done", "done", "done", "failed", "not run"], strict=True))

    held.write_text(text)
    assert session.resume(rundir).attempt == 2
    machines.opened(rundir)
    begun(rundir, "last", 1)
    again = status_of(rundir)
    assert list(again.stages.values())[1:] == ["skipped", "skipped", "skipped", "done", "running"]
    until("the other node has ended", lambda: machines.uids(name), holds=lambda left: len(left) == 1)
    assert control.stop(rundir, wait_s=TRAINS_S).stages["last"] == "stopped"
    session.resume(rundir)
    begun(rundir, "last", 2)
    rundir.write_json("last-told.json", data={})
    done = reach(rundir, "the end", lambda now: now.state == "DONE")
    assert (done.step, done.stages["last"], done.attempt) == (6, "done", 2)
    assert (found := read_evaluation(rundir)) is not None
    assert found.step == 6
    assert {stage: read_record(rundir, stage).status for stage in ORDER} == dict.fromkeys(ORDER, "done")  # type: ignore[union-attr]
    assert session.start(newest_spec(rundir)).handle is None, "all is done"
