"""The whole story on real nodes: containers that run the real agent and trainer, through the launcher's own verbs."""

from __future__ import annotations

import itertools
import time

import pytest

from tests.kubernetes.conftest import until
from tests.kubernetes.machines import TRAINS_S, Machines, events, reach, until_formed
from zephon.launch import control
from zephon.launch import start as session
from zephon.launch.status import status_of
from zephon.ops.tokenizers import load_tokenizer
from zephon.pipeline.experiment import pipeline
from zephon.run.calibration import read_calibration
from zephon.run.directory import RunDir
from zephon.run.ledger import read_ledger, step_digest
from zephon.run.specs import newest_spec
from zephon.train.feed import PipelineFeed

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = 600
_numbers = itertools.count(1)
SETTINGS = [
    "conf=bytes",
    "checkpoint.every=50",
    "pipeline.context_length=64",
    "data.chunk_bytes=4096",
    "trainer.tensorboard=false",
    "elastic.drain_s=20",
    "elastic.heartbeat_s=2",
]


def test_one_run_through_every_change_is_the_unbroken_run(machines: Machines, capsys: pytest.CaptureFixture[str]) -> None:
    name = machines.name(f"story-{next(_numbers)}")
    rundir = machines.submit(machines.spec(name, *SETTINGS, "nodes=4", f"trainer.steps={STEPS}"))
    reach(rundir, "training on four nodes", lambda now: now.world_size == 4 and now.step >= 10)
    four = machines.uids(name)

    asked = time.time()
    settled = control.rescale(rundir, 2, wait_s=TRAINS_S)
    assert settled.world_size == 2
    two = {index: four[index] for index in (0, 1)}
    until("the others' pods have ended", lambda: machines.uids(name), holds=lambda left: left == two)
    told = parts(machines, name, asked)

    victim = next(pod for pod in machines.pods(name) if pod["metadata"]["uid"] == four[0])
    machines.kubectl("delete", "pod", victim["metadata"]["name"], "-n", name, "--wait=false")
    alone = until_formed(machines.runs, name, settled.generation, lambda size: size == 1)
    until_formed(machines.runs, name, alone["generation"], lambda size: size == 2)
    assert machines.uids(name)[1] == four[1]
    assert machines.uids(name)[0] != four[0]

    asked = time.time()
    control.rescale(rundir, 4, wait_s=TRAINS_S)
    told += parts(machines, name, asked)
    assert machines.uids(name)[1] == four[1]

    stopped = control.stop(rundir, wait_s=TRAINS_S)
    assert stopped.state == "STOPPED"
    if machines.ours:
        machines.tool("daemon-stop", "control", "apiserver", "--signal", "9")
        assert "the cluster does not answer" in status_of(rundir).message
        machines.tool("daemon-start", "control", "apiserver")
    else:
        told.append("the API server was not restarted: it is not ours")
    assert session.resume(rundir).attempt == stopped.attempt
    back = reach(rundir, "training again", lambda now: now.step > stopped.step)
    assert (back.world_size, back.generation) == (4, stopped.generation + 1), "they trained before all were back"
    resized = [event["generation"] for event in events(machines.runs, name) if event["event"] == "resized"]
    assert back.generation not in resized, "a pause between stop and resume is nobody's stall"
    done = reach(rundir, "the last step", lambda now: now.state == "DONE", 300)

    assert done.step == STEPS
    ledger = [entry.step for entry in read_ledger(rundir.path("ledger.jsonl"))]
    assert ledger == list(range(STEPS)), "a step was lost or trained twice"
    expected = unbroken(rundir, STEPS)
    assert [entry.digest for entry in read_ledger(rundir.path("ledger.jsonl"))] == expected
    with capsys.disabled():
        print("\n" + "\n".join(told) + f"\n{STEPS} steps on 4, 2, 1, 2, 4 nodes: the same global batch at every step")


def unbroken(rundir: RunDir, steps: int) -> list[str]:
    """The digests of one uninterrupted pass of the loader on one rank."""
    spec = newest_spec(rundir)
    built = pipeline(spec, load_tokenizer(spec.tokenizer.id), dp_rank=0, dp_size=1)
    built.calibrate(read_calibration(rundir))
    feed = PipelineFeed(built)
    try:
        batches = itertools.islice(feed.steps(), steps)
        return [
            step_digest([batch.digests[slot] for slot in sorted(batch.digests)], spec.lanes.count)[0].hex() for batch in batches
        ]
    finally:
        feed.close()


def parts(machines: Machines, run: str, asked: float) -> list[str]:
    """What became of the time between the command and the first step at the new size, from the run's own events."""
    happened = [event for event in events(machines.runs, run) if event["time"] >= asked and event["event"] == "resized"]
    assert happened, "the resize left no event"
    lines = []
    for event in happened:
        said = ", ".join(f"{part} {seconds:.2f}" for part, seconds in {"stall": event["stall_s"], **event["parts_s"]}.items())
        lines.append(f"rescale to {event['nodes']} nodes: first step {event['time'] - asked:.2f} s after the command ({said})")
    return lines
