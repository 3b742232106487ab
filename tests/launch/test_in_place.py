"""A change of members does not end a living worker: the real trainer, real agents, nodes that join, leave and are killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from zephon.launch import control
from zephon.launch import start as session
from zephon.launch.backends.local.supervision import read_state
from zephon.launch.config.compose import compose
from zephon.launch.status import status_of
from zephon.run.directory import RunDir
from zephon.run.events import read_events
from zephon.run.ledger import compare, read_ledger

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SETTINGS = [
    *("conf=bytes", "trainer.steps=1000000", "checkpoint.every=1000000", "trainer.reduction=canonical"),
    *("pipeline.context_length=32", "model.layers=1", "model.dim=16", "trainer.tensorboard=false", "elastic.nodes_max=4"),
    *("elastic.heartbeat_s=2.0", "nodes=2"),
]


def given(*settings: str) -> list[str]:
    """All settings, the given ones in place of the common ones of their name."""
    return list({setting.split("=")[0]: setting for setting in (*SETTINGS, *settings)}.values())


class Changed:
    """A run that trains on this machine and whose members are changed."""

    def __init__(self, runs: Path, name: str, *settings: str) -> None:
        self.rundir: RunDir = session.start(compose(given(f"runs={runs}", f"name={name}", *settings)).spec).rundir

    def agents(self) -> dict[str, int]:
        state = read_state(self.rundir, self.rundir.attempts()[-1])
        assert state is not None
        return {name.split("@")[0]: pid for name, pid in state.agents.items() if pid is not None}

    def workers(self, node: str) -> set[int]:
        """Pids below a node's fork server."""
        (server,) = psutil.Process(self.agents()[node]).children()
        return {worker.pid for worker in server.children()}

    def trains(self, nodes: int) -> None:
        """Waits until that many nodes have trained some further steps."""
        step, generation = status_of(self.rundir).step, 0

        def there(now: Any) -> bool:
            nonlocal step, generation
            if now.generation != generation:
                step, generation = now.step, now.generation
            return bool(now.nodes == nodes and now.step >= step + 3)

        control.wait_for(self.rundir, there, 120, f"to train on {nodes} nodes")

    def kill(self, node: str, sig: signal.Signals) -> None:
        before = status_of(self.rundir).generation
        os.kill(self.agents()[node], sig)
        control.wait_for(self.rundir, lambda now: now.generation > before, 120, "to notice")

    def resized(self) -> list[dict[str, Any]]:
        return [dict(event.details) for event in read_events(self.rundir) if event.kind == "resized"]

    def steps(self) -> list[int]:
        return [entry.step for entry in read_ledger(self.rundir.path("ledger.jsonl"))]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield tmp_path
    for folder in tmp_path.glob("*/attempts"):
        control.stop(RunDir(str(folder.parent)))


def test_nodes_join_leave_and_die_and_the_workers_that_stay_lose_no_step_and_no_bit(runs: Path) -> None:
    run = Changed(runs, "changed")
    run.trains(2)
    before = run.workers("node-0")
    control.rescale(run.rundir, 4, wait_s=120)
    run.trains(4)
    run.kill("node-2", signal.SIGKILL)
    run.trains(4)
    run.kill("node-1", signal.SIGTERM)
    run.trains(4)
    control.rescale(run.rundir, 2, wait_s=120)
    run.trains(2)
    assert run.workers("node-0") == before, "a worker of node-0 was replaced"
    run.kill("node-0", signal.SIGKILL)  # the rank that writes the ledger
    run.trains(2)
    control.stop(run.rundir)
    assert [event["lost_steps"] for event in run.resized()] == [0] * len(run.resized())
    assert len(run.resized()) >= 5
    steps = run.steps()
    assert steps == list(range(len(steps))), "a step was trained twice, or never"
    alone = Changed(runs, "alone", "nodes=1")
    control.wait_for(alone.rundir, lambda now: now.step >= len(steps), 200, "to train as many steps")
    control.stop(alone.rundir)
    comparison = compare(run.rundir.root, alone.rundir.root)
    assert comparison.equal, comparison.sentence
    assert comparison.steps == len(steps)
    assert comparison.apart == 0.0, comparison.sentence


def test_with_shards_inside_a_node_the_death_of_a_node_loses_no_step(runs: Path) -> None:
    run = Changed(runs, "hsdp", "trainer.reduction=default", "trainer.parallel=hsdp", "elastic.procs_per_node=2")
    run.trains(2)
    before = run.workers("node-0")
    run.kill("node-1", signal.SIGKILL)
    run.trains(2)
    assert run.workers("node-0") == before
    control.stop(run.rundir)
    assert [event["lost_steps"] for event in run.resized()] == [0] * len(run.resized())
    assert run.steps() == list(range(len(run.steps())))


def test_without_in_place_every_change_starts_new_workers(runs: Path) -> None:
    run = Changed(runs, "replaced", "elastic.in_place=false", "nodes=1")
    run.trains(1)
    before = run.workers("node-0")
    control.rescale(run.rundir, 2, wait_s=120)
    run.trains(2)
    assert not run.workers("node-0") & before
    assert [event["lost_steps"] for event in run.resized()] == [0]
