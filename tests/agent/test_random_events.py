"""Fifty random membership events in one run of the real trainer: the ledger is that of a run that nobody disturbed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.agent.toy import Toy
from zephon.errors import ConfigError
from zephon.launch import control
from zephon.launch import start as session
from zephon.launch.config.compose import compose
from zephon.run import ledger

EVENTS = 50


class Real(Toy):
    """A run of the real trainer, as small as it gets."""

    def __init__(self, runs: Path, *, name: str, nodes: int, steps: int) -> None:
        overrides = ["conf=bytes", f"runs={runs}", f"name={name}", f"nodes={nodes}", f"trainer.steps={steps}"]
        overrides += [
            "pipeline.context_length=16",
            "global_batch_size=8",
            "model.layers=1",
            "model.dim=16",
            "trainer.tensorboard=false",
        ]
        overrides += ["checkpoint.every=10", "elastic.heartbeat_s=2.0", "elastic.failure_budget=50", "elastic.nodes_max=4"]
        self.spec = compose(overrides).spec
        self.rundir = session.rundir_of(self.spec)
        self.settings: dict[str, Any] = {"steps": steps}

    def start(self) -> Real:
        session.start(self.spec)
        return self


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Real]]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made: list[Real] = []

    def make(*, name: str, nodes: int, steps: int) -> Real:
        made.append(Real(tmp_path / "runs", name=name, nodes=nodes, steps=steps))
        return made[-1]

    yield make
    for each in made:
        each.end()


def disturb(run: Real, chance: random.Random) -> str:
    """One event on a node picked by chance; what it was."""
    kind = chance.choice(("join", "leave", "kill agent", "kill worker", "freeze", "drain agent"))
    target = run.status().target
    if kind in ("join", "leave"):
        sizes = [n for n in (1, 2, 4) if (n > target if kind == "join" else n < target)] or [2 if target != 2 else 1]
        try:
            control.rescale(run.rundir, chance.choice(sizes), wait_s=0)
        except ConfigError as error:
            if "has not settled" not in str(error):
                raise
            return f"{kind} refused"
        return kind
    index = chance.randrange(target)
    try:
        agent = run.agent(index)
        if kind == "kill agent":
            agent.kill()
        elif kind == "drain agent":
            os.kill(agent.pid, signal.SIGTERM)
        elif kind == "kill worker":
            for worker in run.workers(index):
                worker.kill()
        else:
            freeze(agent, chance.random())
    except psutil.NoSuchProcess:
        return f"{kind}: gone already"
    return kind


def freeze(agent: psutil.Process, seconds: float) -> None:
    tree = [agent, *agent.children(recursive=True)]
    for process in tree:
        process.suspend()
    time.sleep(seconds)
    for process in tree:
        process.resume()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_fifty_random_membership_events_end_with_the_ledger_of_the_unbroken_run(real: Callable[..., Real]) -> None:
    chance = random.Random(7)
    run = real(name="disturbed", nodes=2, steps=100_000).start()
    run.wait_step(3)
    story = []
    for _ in range(EVENTS):
        story.append(disturb(run, chance))
        time.sleep(chance.random() * 1.5)
        assert run.status().state not in ("FAILED", "DONE"), f"{story}\n{run.story()}"
    run.wait(lambda now: now.state == "TRAINING", 60)
    reached = run.status().step
    run.wait_step(reached + 2)
    stopped = control.stop(run.rundir)
    assert stopped.state == "STOPPED", run.story()
    unbroken = real(name="unbroken", nodes=1, steps=100_000)
    unbroken.start()
    unbroken.wait_step(stopped.step, 300)
    control.stop(unbroken.rundir)
    steps = sorted({entry.step for entry in ledger.read_ledger(run.rundir.path("ledger.jsonl"))})
    assert steps == list(range(stopped.step)), "a step is missing"
    for comparison in (ledger.compare(run.rundir.url), ledger.compare(run.rundir.url, unbroken.rundir.url)):
        assert comparison.equal, comparison.sentence
    last = run.status()
    print(f"{stopped.step} steps, {len(set(story))} kinds of events, {last.failures} crashes, {last.resizes} resizes")
