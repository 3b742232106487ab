"""Runs of the toy worker on real agents, owned by a test: started, steered, looked at, and ended without leftovers."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from zephon.launch import control
from zephon.launch import start as session
from zephon.launch.backends.local.index import apps
from zephon.launch.backends.local.supervision import read_state
from zephon.launch.status import LIVE, RunStatus, status_of
from zephon.run.directory import RunDir
from zephon.run.events import read_events
from zephon.run.state import AttemptState
from zephon.spec.experiment import RunSpec

WORKER = "tests.agent.toy_worker"


def toy_spec(runs: Path, *, name: str = "toy", nodes: int = 1, steps: int = 20, **elastic: Any) -> RunSpec:
    """A spec that is cheap to start: eight lanes, one process per node, short waits."""
    waits = {"drain_s": 20.0, "heartbeat_s": 2.0, "join_timeout_s": 60.0, "failure_budget": 3, **elastic}
    return RunSpec.from_dict(
        {
            "name": name,
            "runs": str(runs),
            "nodes": nodes,
            "global_batch_size": 8,
            "data": {"datasets": {"docs": {"path": "stdlib://docs"}}},
            "pipeline": {"context_length": 16},
            "lanes": {"count": 8, "allow": "uneven"},
            "trainer": {"steps": steps},
            "elastic": waits,
        }
    )


class Toy:
    """One run of the toy worker. ``settings`` are the worker's: steps, step_s, faults by step."""

    def __init__(self, runs: Path, *, nodes: int, settings: dict[str, Any], name: str = "toy", **elastic: Any) -> None:
        steps = int(settings.setdefault("steps", 20))
        self.spec = toy_spec(runs, name=name, nodes=nodes, steps=steps, **elastic)
        self.rundir: RunDir = session.rundir_of(self.spec)
        self.settings = settings

    def start(self) -> Toy:
        self._export()
        session.start(self.spec, worker=WORKER)
        return self

    def resume(self, *overrides: str) -> Toy:
        self._export()
        session.resume(self.rundir, overrides, worker=WORKER)
        return self

    def _export(self) -> None:
        os.environ["ZEPHON_TOY"] = json.dumps(self.settings)

    def status(self) -> RunStatus:
        return status_of(self.rundir)

    def wait(self, test: Callable[[RunStatus], bool], limit_s: float = 60.0) -> RunStatus:
        try:
            return control.wait_for(self.rundir, test, limit_s, "in a test")
        except Exception as error:
            error.add_note(self.story())
            raise

    def wait_end(self, limit_s: float = 60.0) -> RunStatus:
        return self.wait(lambda now: now.state not in LIVE, limit_s)

    def wait_step(self, step: int, limit_s: float = 60.0) -> RunStatus:
        return self.wait(lambda now: now.step >= step or now.state not in LIVE, limit_s)

    def wait_world(self, size: int, limit_s: float = 60.0) -> RunStatus:
        return self.wait(lambda now: now.world_size == size and now.nodes == size and now.state != "STARTING", limit_s)

    def supervisor(self) -> AttemptState:
        state = read_state(self.rundir, self.rundir.attempts()[-1])
        assert state is not None
        return state

    def supervisor_pid(self) -> int:
        pid = self.supervisor().pid
        assert pid is not None
        return pid

    def agent(self, index: int, limit_s: float = 20.0) -> psutil.Process:
        """The agent process of a node that is a member now."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            for name, pid in self.supervisor().agents.items():
                if name.startswith(f"node-{index}@") and pid:
                    return psutil.Process(pid)
            time.sleep(0.05)
        raise AssertionError(f"no agent of node-{index}: {self.supervisor()}")

    def workers(self, index: int) -> list[psutil.Process]:
        """The worker processes of a node: the children of its fork server."""
        return [w for server in self.agent(index).children() for w in server.children()]

    def lines(self) -> list[dict[str, Any]]:
        """One entry per step that was trained, in order of writing."""
        path = Path(self.rundir.path("toy.jsonl"))
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        return [event.to_dict() for event in read_events(self.rundir) if not kinds or event.kind in kinds]

    def story(self) -> str:
        """What happened, for a failing test."""
        logs = Path(self.rundir.path("attempts")).rglob("*.log")
        tails = [f"{path}:\n" + "\n".join(path.read_text(errors="replace").splitlines()[-15:]) for path in sorted(logs)]
        return "\n".join([*(json.dumps(event) for event in self.events()), *tails])

    def end(self) -> None:
        """Ends whatever is left, and proves that nothing is."""
        ids = [entry.app_id for entry in apps() if entry.run == self.rundir.url]
        for attempt in self.rundir.attempts():
            state = read_state(self.rundir, attempt)
            if state is not None and not state.ended and state.pid is not None:
                os.kill(state.pid, signal.SIGKILL)
        deadline = time.monotonic() + 5.0
        while (left := [p for app in ids for p in processes_of(app)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        for process in left:
            process.kill()
        assert not left, f"left over after the supervisor's end: {left}"


def processes_of(app_id: str) -> list[psutil.Process]:
    """Processes that belong to an attempt, zombies left out."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("ZEPHON_APP_ID") == app_id and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Toy]]:
    """A maker of toy runs; all of them end with the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("ZEPHON_TOY", "{}")
    made: list[Toy] = []

    def make(*, nodes: int = 1, name: str = "toy", elastic: dict[str, Any] | None = None, **settings: Any) -> Toy:
        made.append(Toy(tmp_path / "runs", nodes=nodes, settings=settings, name=name, **(elastic or {})))
        return made[-1]

    yield make
    for each in made:
        each.end()
