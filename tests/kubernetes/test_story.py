"""The whole story on real nodes: containers that run the real agent and trainer, through the launcher's own verbs."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.conftest import until
from tests.kubernetes.machines import Machines, ended, events, start
from zephon.launch import session
from zephon.launch.compose import compose
from zephon.launch.status import RunStatus, look
from zephon.ledger import compare, read_ledger
from zephon.rundir import RunDir
from zephon.spec import RunSpec, SchedulerSpec

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = 600
SETTINGS = [
    "conf=bytes",
    "checkpoint.every=50",
    "pipeline.context_length=64",
    "data.chunk_bytes=4096",
    "trainer.tensorboard=false",
    "elastic.drain_s=20",
    "elastic.heartbeat_s=2",
]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    found = start(tmp_path_factory.mktemp("story"), nodes=3, life_s=1500)
    with ended(found):
        yield found


def spec_of(machines: Machines, name: str, *words: str, **options: Any) -> RunSpec:
    spec = compose([*SETTINGS, f"name={name}", f"runs={machines.runs}", *words]).spec
    chosen = machines.options(machines.namespace(name), **options)
    return dataclasses.replace(spec, scheduler=SchedulerSpec(name="kubernetes", options=chosen))


def submit(machines: Machines, spec: RunSpec) -> RunDir:
    rundir = session.start(spec).rundir
    for directory, _, files in os.walk(machines.runs):  # made by root here; the pods are not root
        os.chmod(directory, 0o777)
        for file in files:
            os.chmod(Path(directory) / file, 0o666)
    return rundir


def reach(rundir: RunDir, what: str, test: Callable[[RunStatus], Any], seconds: float = 120) -> RunStatus:
    def check() -> RunStatus | None:
        status = look(rundir)
        assert status.state != "FAILED", (status.message, status.error)
        return status if test(status) else None

    found: RunStatus = until(what, check, seconds)
    return found


def uids(machines: Machines, name: str) -> dict[int, str]:
    pods = machines.pods(name)
    index = "batch.kubernetes.io/job-completion-index"
    return {int(pod["metadata"]["labels"][index]): pod["metadata"]["uid"] for pod in pods}


def test_one_run_through_every_change_is_the_unbroken_run(machines: Machines, capsys: pytest.CaptureFixture[str]) -> None:
    name = "story"
    rundir = submit(machines, spec_of(machines, name, "nodes=4", f"trainer.steps={STEPS}"))
    reach(rundir, "training on four nodes", lambda now: now.world_size == 4 and now.step >= 10)
    four = uids(machines, name)

    asked = time.time()
    settled = session.rescale(rundir, 2)
    assert settled.world_size == 2
    assert uids(machines, name) == {index: four[index] for index in (0, 1)}
    told = parts(machines, name, asked)

    victim = next(pod for pod in machines.pods(name) if pod["metadata"]["uid"] == four[0])
    machines.kubectl("delete", "pod", victim["metadata"]["name"], "-n", name, "--wait=false")
    reach(rundir, "one node trains on alone", lambda now: now.world_size == 1)
    reach(rundir, "its successor has joined", lambda now: now.world_size == 2)
    assert uids(machines, name)[1] == four[1]
    assert uids(machines, name)[0] != four[0]

    asked = time.time()
    session.rescale(rundir, 4)
    told += parts(machines, name, asked)
    assert uids(machines, name)[1] == four[1]

    stopped = session.stop(rundir)
    assert stopped.state == "STOPPED"
    machines.tool("daemon-stop", "control", "apiserver", "--signal", "9")
    assert "the cluster does not answer" in look(rundir).message
    machines.tool("daemon-start", "control", "apiserver")
    assert session.resume(rundir).attempt == stopped.attempt
    reach(rundir, "training again", lambda now: now.step > stopped.step)
    done = reach(rundir, "the last step", lambda now: now.state == "DONE", 300)

    assert done.step == STEPS
    ledger = [entry.step for entry in read_ledger(rundir.path("ledger.jsonl"))]
    assert ledger == list(range(STEPS)), "a step was lost or trained twice"
    session.start(local(machines, done.steps))
    unbroken = session.rundir_of(local(machines, done.steps))
    reach(unbroken, "the unbroken run", lambda now: now.state == "DONE", 300)
    verdict = compare(rundir.root, unbroken.root)
    assert verdict.equal, verdict.sentence
    assert verdict.steps == STEPS
    with capsys.disabled():
        print("\n" + "\n".join(told) + f"\n{verdict.sentence}")


def local(machines: Machines, steps: int) -> RunSpec:
    return compose([*SETTINGS, "name=unbroken", f"runs={machines.runs}", "nodes=1", f"trainer.steps={steps}"]).spec


def parts(machines: Machines, run: str, asked: float) -> list[str]:
    """What became of the time between the command and the first step at the new size, from the run's own events."""
    happened = [event for event in events(machines.runs, run) if event["time"] >= asked and event["event"] == "resized"]
    assert happened, "the resize left no event"
    lines = []
    for event in happened:
        numbers = {key: value for key, value in event.items() if isinstance(value, float) and key != "time"}
        said = ", ".join(f"{key} {value:.2f}" for key, value in numbers.items())
        lines.append(f"rescale to {event['nodes']} nodes: first step {event['time'] - asked:.2f} s after the command ({said})")
    return lines
