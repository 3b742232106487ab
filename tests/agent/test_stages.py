"""Stages around training where nodes take turns, as on a cluster: a real coordinator and real agents, killed and stopped."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.agent.toy import WORKER, toy_spec
from zephon.run.attempt_stages import read_attempt_stages
from zephon.run.directory import RunDir
from zephon.run.events import read_events
from zephon.run.specs import write_spec
from zephon.run.stage_records import read_record
from zephon.spec.experiment import StageSpec, StagesSpec

ROOT = Path(__file__).resolve().parents[2]
HERE = "tests.launch.own_stages"
pytestmark = pytest.mark.slow  # every test starts real agents, which import torch


class Cast:
    """A coordinator and agents of one attempt, each a process of its own, ended with the test."""

    def __init__(self, root: Path, *order: str, own: dict[str, Any], **elastic: Any) -> None:
        stages = StagesSpec(order=order, own={name: StageSpec.from_dict(one) for name, one in own.items()})
        spec = toy_spec(root, nodes=2, steps=3, **{"heartbeat_s": 2.0, **elastic})
        self.rundir = RunDir(str(root / "toy"))
        write_spec(self.rundir, 1, dataclasses.replace(spec, stages=stages))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.started: list[psutil.Popen] = []
        self.coordinator = self.serve()

    def serve(self) -> psutil.Popen:
        address = ["--linger", "--nodes", "2", "--host", "127.0.0.1", "--port", str(self.port)]
        return self._start("zephon.agent.coordinator", *address, log="coordinator")

    def agent(self, name: str) -> psutil.Popen:
        place = ["--endpoint", f"127.0.0.1:{self.port}", "--node", name, "--worker", WORKER]
        return self._start("zephon.agent", *place, log=name)

    def _start(self, module: str, *more: str, log: str) -> psutil.Popen:
        command = [sys.executable, "-m", module, "--run", self.rundir.url, "--attempt", "1", *more]
        env = {**os.environ, "ZEPHON_TOY": json.dumps({"steps": 3, "step_s": 0.02}), "OMP_NUM_THREADS": "1"}
        with open(self.rundir.path("attempts", "0001", f"{log}.log"), "ab") as file:
            self.started.append(psutil.Popen(command, env=env, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT))
        return self.started[-1]

    def tell(self, name: str) -> None:
        self.rundir.write_json(f"{name}-told.json", data={})

    def tries(self, name: str) -> list[int]:
        """The processes that have begun an own stage ``until_told``, in order."""
        found = sorted(self.rundir.fs.ls(self.rundir.path(name))) if self.rundir.exists(name) else []
        return [json.loads(Path(path).read_text())["pid"] for path in found if path.endswith(".json")]

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event.to_dict() for event in read_events(self.rundir) if event.kind == kind]

    def states(self) -> dict[str, str]:
        return dict(read_attempt_stages(self.rundir, 1).states)

    def until(self, what: str, test: Callable[[], Any], limit_s: float = 60.0) -> None:
        deadline = time.monotonic() + limit_s
        while not test():
            assert time.monotonic() < deadline, f"{what}\n{self.story()}"
            time.sleep(0.05)

    def gone(self, pid: int) -> None:
        """A process has ended, by itself or by another's doing."""
        self.until(f"{pid} has ended", lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie", 10.0)

    def ends(self, agent: psutil.Popen) -> int:
        """How an agent ends, by itself."""
        self.until("the agent ends", lambda: agent.poll() is not None)
        return int(agent.wait())

    def story(self) -> str:
        logs = sorted(Path(self.rundir.path("attempts")).rglob("*.log"))
        told = [f"{path}:\n{path.read_text(errors='replace')[-1500:]}" for path in logs]
        return "\n".join(
            [*(json.dumps(event.to_dict()) for event in read_events(self.rundir)), json.dumps(self.states()), *told]
        )

    def end(self) -> None:
        for process in self.started:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()  # what it started ends with it
            process.wait(10)


@pytest.fixture
def cast(tmp_path: Path) -> Iterator[Callable[..., Cast]]:
    made: list[Cast] = []

    def make(*order: str, own: dict[str, Any], **elastic: Any) -> Cast:
        made.append(Cast(tmp_path, *order, own=own, **elastic))
        return made[-1]

    yield make
    for each in made:
        each.end()


def told(name: str, **more: Any) -> dict[str, Any]:
    return {"call": f"{HERE}:until_told", "options": {"name": name}, **more}


def test_a_leading_node_killed_in_a_stage_is_followed_by_another_which_begins_it_again(cast: Callable[..., Cast]) -> None:
    run = cast("first", "train", "last", own={"first": told("first"), "last": told("last")})
    leading = run.agent("node-0@a")
    run.until("the first stage runs", lambda: run.tries("first"))
    other = run.agent("node-1@a")
    run.until("both are there", lambda: len(run.events("node_hello")) == 2)
    assert run.states() == {"first": "running", "train": "waiting", "last": "waiting"}
    assert run.events("stage_started")[0]["node"] == "node-0@a"
    leading.send_signal(signal.SIGKILL)
    run.until("the other node has begun it", lambda: len(run.tries("first")) == 2)
    run.gone(run.tries("first")[0])
    successor = run.agent("node-0@b")
    run.tell("first")
    run.until("one node does the last stage", lambda: run.tries("last"))
    assert read_record(run.rundir, "train").status == "done"  # type: ignore[union-attr]
    holder = read_attempt_stages(run.rundir, 1).node
    remaining, dismissed = (successor, other) if holder == "node-0@b" else (other, successor)
    assert run.ends(dismissed) == 0, "it has nothing to do any more"
    assert remaining.poll() is None

    remaining.send_signal(signal.SIGKILL)  # behind training too: its pod comes again, and does what is left
    again = run.agent("node-0@c")
    run.until("its successor has begun it", lambda: len(run.tries("last")) == 2)
    run.tell("last")
    assert run.ends(again) == 0
    assert run.states() == {"first": "done", "train": "done", "last": "done"}
    assert {read_record(run.rundir, name).result["tries"] for name in ("first", "last")} == {2}  # type: ignore[union-attr,index]
    assert len(run.events("stage_lost")) == 2
    assert [event["status"] for event in run.events("finish")] == [0]


def test_a_coordinator_killed_in_a_stage_finds_it_still_running_and_goes_on(cast: Callable[..., Cast]) -> None:
    run = cast("first", "train", own={"first": told("first")})
    agents = [run.agent("node-0@a"), run.agent("node-1@a")]
    run.until("the first stage runs, and both are there", lambda: run.tries("first") and len(run.events("node_hello")) == 2)
    run.coordinator.send_signal(signal.SIGKILL)
    run.coordinator.wait(10)
    run.serve()
    run.until("the nodes are back", lambda: len(run.events("node_hello")) == 4)
    run.tell("first")
    assert [run.ends(agent) for agent in agents] == [0, 0]
    assert len(run.tries("first")) == 1
    assert run.states() == {"first": "done", "train": "done"}
    assert read_record(run.rundir, "first").result == {"tries": 1}  # type: ignore[union-attr]


def test_nodes_that_are_asked_to_leave_stop_their_stage_and_the_next_ones_go_on_with_it(cast: Callable[..., Cast]) -> None:
    run = cast("quick", "first", "train", own={"quick": {"call": f"{HERE}:summary"}, "first": told("first")})
    agents = [run.agent("node-0@a"), run.agent("node-1@a")]
    run.until("the stage runs", lambda: run.tries("first"))
    for agent in agents:
        agent.send_signal(signal.SIGTERM)
    assert [run.ends(agent) for agent in agents] == [143, 143]
    assert read_record(run.rundir, "first").status == "stopped"  # type: ignore[union-attr]
    run.until("it is known as stopped", lambda: run.states()["first"] == "stopped")
    assert read_attempt_stages(run.rundir, 1).lost == 0, "a node that leaves is not lost, nor one that left as its turn came"
    run.gone(run.tries("first")[0])
    run.tell("first")
    agents = [run.agent("node-0@b"), run.agent("node-1@b")]
    assert [run.ends(agent) for agent in agents] == [0, 0]
    assert run.states() == {"quick": "done", "first": "done", "train": "done"}
    assert run.events("stage_lost") == []


def test_a_stage_that_fails_ends_the_job_for_good_with_its_reason(cast: Callable[..., Cast]) -> None:
    run = cast("until_mended", "train", own={"until_mended": {"call": f"{HERE}:until_mended"}})
    agents = [run.agent("node-0@a"), run.agent("node-1@a")]
    assert [run.ends(agent) for agent in agents] == [70, 70]
    (end,) = run.events("finish")
    assert end["cause"] == "stage until_mended failed: RuntimeError: somebody has to mend this"
    assert run.states() == {"until_mended": "failed", "train": "waiting"}
    run.coordinator.send_signal(signal.SIGKILL)
    run.serve()
    assert run.ends(run.agent("node-0@b")) == 70, "a coordinator that comes again knows how the job has ended"


def test_a_stage_that_loses_its_node_again_and_again_spends_the_failure_budget(cast: Callable[..., Cast]) -> None:
    run = cast("first", "train", own={"first": told("first")}, failure_budget=1, heartbeat_s=1.0)
    for number in range(2):
        agent = run.agent(f"node-0@{number}")
        run.until("it has begun", lambda number=number: len(run.tries("first")) == number + 1)  # type: ignore[misc]
        agent.send_signal(signal.SIGKILL)
    run.until("the job has ended", lambda: run.events("finish"))
    assert "the nodes that ran it were lost 2 times" in run.events("finish")[0]["cause"]
    assert read_record(run.rundir, "first").status == "failed"  # type: ignore[union-attr]
    assert run.ends(run.agent("node-0@x")) == 70


def test_a_node_that_was_frozen_in_its_stage_writes_nothing_after_its_successor_has_begun(cast: Callable[..., Cast]) -> None:
    run = cast("first", "train", own={"first": told("first")}, heartbeat_s=1.0)
    frozen = run.agent("node-0@a")
    run.until("it has begun", lambda: run.tries("first"))
    tree = [frozen, *frozen.children(recursive=True)]
    for process in tree:
        process.suspend()
    other = run.agent("node-1@a")
    run.until("the other has begun", lambda: len(run.tries("first")) == 2)
    run.tell("first")
    tree[-1].resume()  # only the stage's own process, which would now be done before its agent hears of anything
    run.gone(tree[-1].pid)
    assert read_record(run.rundir, "first").result == {"tries": 2}  # type: ignore[union-attr]
    for process in tree[:-1]:
        process.resume()
    assert [run.ends(agent) for agent in (frozen, other)] == [0, 0]
    assert run.states() == {"first": "done", "train": "done"}
