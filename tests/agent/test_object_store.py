"""A run whose data and run directory are in an object store: real agents, real trainer, real requests to an S3 server."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import psutil
import pytest

from tests.agent.peers import ROOT, until
from zephon.launch.config.compose import compose
from zephon.launch.status import status_of
from zephon.ops.tokenizers import load_tokenizer
from zephon.pipeline.experiment import pipeline
from zephon.run import ledger
from zephon.run.attempt_stages import read_attempt_stages
from zephon.run.calibration import read_calibration
from zephon.run.directory import RunDir
from zephon.run.events import read_events
from zephon.run.specs import write_spec
from zephon.spec.experiment import RunSpec, StageSpec, StagesSpec
from zephon.train.feed import PipelineFeed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

STEPS = 100


class Job:
    """One attempt: a coordinator and agents, each a process, that share nothing but the store."""

    def __init__(self, run: str, attempt: int, nodes: int, logs: Path) -> None:
        self.run, self.attempt, self.logs = run, attempt, logs
        self.processes: list[psutil.Popen] = []
        self._start("zephon.agent.coordinator", "--nodes", str(nodes), "--host", "127.0.0.1", "--port", "0", name="coordinator")
        until(lambda: self.text("coordinator").startswith("coordinator of"), 60, self.story)
        self.port = self.text("coordinator").splitlines()[0].rsplit(":", 1)[1]
        for index in range(nodes):
            self._start(
                "zephon.agent",
                "--endpoint",
                f"127.0.0.1:{self.port}",
                "--node",
                f"node-{index}@{attempt}",
                name=f"node-{index}",
            )

    def _start(self, module: str, *more: str, name: str) -> None:
        command = [sys.executable, "-m", module, "--run", self.run, "--attempt", str(self.attempt), *more]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        with open(self.logs / f"{self.attempt}-{name}.log", "wb") as log:
            self.processes.append(psutil.Popen(command, env=env, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT))

    def text(self, name: str) -> str:
        return (self.logs / f"{self.attempt}-{name}.log").read_text(errors="replace")

    def story(self) -> str:
        return "\n".join(f"{path.name}:\n{path.read_text(errors='replace')[-3000:]}" for path in sorted(self.logs.iterdir()))

    def statuses(self, limit_s: float = 90) -> list[int]:
        until(lambda: all(process.poll() is not None for process in self.processes), limit_s, self.story)
        return [process.returncode for process in self.processes]

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()  # what it started ends with it
            process.wait(10)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    made: list[Job] = []

    def make(run: str, attempt: int, nodes: int) -> Job:
        made.append(Job(run, attempt, nodes, tmp_path))
        return made[-1]

    yield make
    for each in made:
        each.end()


def spec_of(store: str) -> RunSpec:
    """The smallest real run, with its data in the store."""
    texts = [f"document {i}: " + " ".join(str(i * j % 97) for j in range(40)) for i in range(1500)]
    for shard in range(2):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts[shard::2])
        fsspec.filesystem("s3").pipe_file(f"{store}/data/part-{shard}.jsonl", lines.encode())
    overrides = ["conf=bytes", f"runs={store}/runs", "name=far", f"trainer.steps={STEPS}", "checkpoint.every=100", "nodes=2"]
    overrides += [
        "pipeline.context_length=32",
        "global_batch_size=8",
        "model.layers=1",
        "model.dim=16",
        "trainer.tensorboard=false",
    ]
    overrides += ["data.datasets={far: {path: " + store + "/data}}", "data.chunk_bytes=4096", "elastic.heartbeat_s=2"]
    return compose(overrides).spec


def unbroken(spec: RunSpec, rundir: RunDir) -> list[str]:
    built = pipeline(spec, load_tokenizer(spec.tokenizer.id), dp_rank=0, dp_size=1)
    built.calibrate(read_calibration(rundir))
    feed = PipelineFeed(built)
    try:
        return [
            ledger.step_digest([batch.digests[slot] for slot in sorted(batch.digests)], spec.lanes.count)[0].hex()
            for batch in itertools.islice(feed.steps(), STEPS)
        ]
    finally:
        feed.close()


def test_a_run_in_an_object_store_is_drained_resumed_at_another_size_and_done(objects: str, job: Callable[..., Job]) -> None:
    spec = spec_of(objects)
    rundir = RunDir(f"{objects}/runs/far")
    write_spec(rundir, 1, spec)
    two = job(rundir.url, 1, 2)
    until(lambda: step(rundir, 1) >= 1, 120, two.story)
    for agent in two.processes[1:]:
        agent.terminate()
    until(lambda: all(agent.poll() is not None for agent in two.processes[1:]), 60, two.story)
    assert [agent.returncode for agent in two.processes[1:]] == [143, 143], two.story()
    two.end()
    saved = status_of(rundir).checkpoint
    assert saved is not None
    assert 1 <= saved < STEPS
    assert saved == step(rundir, 1), "a step was lost by the drain"

    own = {"summary": StageSpec(call="tests.launch.own_stages:summary", outputs=("summary.json",))}
    stages = StagesSpec(order=("calibrate", "train", "summary"), own=own)
    write_spec(rundir, 2, dataclasses.replace(spec, stages=stages))
    one = job(rundir.url, 2, 1)
    assert one.statuses() == [0, 0]
    lines = rundir.fs.cat_file(rundir.path("ledger.jsonl")).decode().splitlines()
    entries = [json.loads(line) for line in lines]
    assert [entry["step"] for entry in entries] == list(range(STEPS))
    assert {entry["world_size"] for entry in entries[:saved]} == {2}
    assert {entry["world_size"] for entry in entries[saved:]} == {1}
    assert [entry["digest"] for entry in entries] == unbroken(spec, rundir)
    assert ledger.compare(rundir.url).equal
    assert dict(read_attempt_stages(rundir, 2).states) == {"calibrate": "done", "train": "done", "summary": "done"}
    assert rundir.read_json("summary.json")["name"] == "far"
    assert "stage summary: done" in one.text("node-0"), "without a file system of its own a stage speaks in its node's log"
    assert [event.details["nodes"] for event in read_events(rundir) if event.kind == "generation"][-1] == ["node-0@2"]


@pytest.mark.parametrize("kind", ["store", "files"])
def test_a_paused_attempt_that_wakes_up_after_a_later_one_has_claimed_the_run_ends_for_good_and_adds_nothing(
    kind: str, objects: str, tmp_path: Path, job: Callable[..., Job]
) -> None:
    spec = dataclasses.replace(spec_of(objects), nodes=1)
    rundir = RunDir(f"{objects}/runs/far" if kind == "store" else str(tmp_path / "run"))
    write_spec(rundir, 1, spec)
    first = job(rundir.url, 1, 1)
    until(lambda: step(rundir, 1) >= 1, 120, first.story)
    paused = [process for started in first.processes for process in (started, *started.children(recursive=True))]
    for process in paused:
        process.suspend()
    write_spec(rundir, 2, spec)
    second = job(rundir.url, 2, 1)
    until(lambda: step(rundir, 2) >= 1, 120, second.story)
    for process in paused:
        process.resume()
    assert first.statuses() == [1, 70], first.story()
    assert "attempt 2 trains this run now and this process belongs to attempt 1" in first.text("coordinator")
    assert second.statuses() == [0, 0], second.story()
    lines = [json.loads(line) for line in rundir.fs.cat_file(rundir.path("ledger.jsonl")).decode().splitlines()]
    assert sorted({line["step"] for line in lines}) == list(range(STEPS))
    assert [line["attempt"] for line in lines] == sorted(line["attempt"] for line in lines)
    assert ledger.two_at_once(rundir.url) == ""


def step(rundir: RunDir, attempt: int) -> int:
    try:
        return int(rundir.read_json("attempts", RunDir.attempt_name(attempt), "progress.json")["step"])
    except FileNotFoundError:
        return 0
