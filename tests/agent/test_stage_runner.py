"""Who carries out a stage: real processes of a real fork server, ordered by a coordinator that the test plays."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.peers import until
from tests.agent.played import SECRET, Played
from tests.agent.toy import toy_spec
from zephon.agent.forkserver import ForkServer
from zephon.agent.link import Link
from zephon.agent.messages import Hello, Leaving, RunStage, StageEnded, StageStarted, WithdrawStage
from zephon.agent.stage_runner import OrderedStages, StageRunner, outcome
from zephon.run.attempt_stages import AttemptStages, write_attempt_stages
from zephon.run.directory import RunDir
from zephon.run.specs import write_spec
from zephon.run.stage_records import StageRecord, read_record, write_record
from zephon.spec.experiment import RunSpec, StageSpec, StagesSpec
from zephon.stages.stage import Stage, stages_of
from zephon.stages.walk import StageEnd

OWN = """
import time
def quick(run, spec):
    print("it runs", flush=True)
    return {"tries": 1}
def fails(run, spec):
    raise ValueError("no luck")
def waits(run, spec):
    run.write_json("begun.json", data={})
    time.sleep(60)
"""
NAMES = ("quick", "fails", "waits")


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunSpec:
    (tmp_path / "own_stages_here.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = {name: StageSpec(call=f"own_stages_here:{name}") for name in NAMES}
    spec = dataclasses.replace(toy_spec(tmp_path), stages=StagesSpec(order=(*NAMES, "train"), own=own))
    for attempt in (1, 2):
        write_spec(RunDir(str(tmp_path / "toy")), attempt, spec)
    return spec


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    return RunDir(str(tmp_path / "toy"))


@pytest.fixture
def runner(spec: RunSpec, rundir: RunDir, server: ForkServer, tmp_path: Path) -> StageRunner:
    return runner_of(rundir, server, tmp_path)


def runner_of(rundir: RunDir, server: ForkServer, tmp_path: Path, attempt: int = 1) -> StageRunner:
    return StageRunner(server, rundir=rundir, attempt=attempt, env={}, logs=str(tmp_path / "logs"))


def stage(spec: RunSpec, name: str) -> Stage:
    (found,) = (stage for stage in stages_of(spec) if stage.name == name)
    return found


def end_of(runner: StageRunner) -> StageEnd:
    ends: list[StageEnd] = []

    def ended() -> bool:
        end = runner.poll()
        ends.extend([end] if end is not None else [])
        return bool(ends)

    until(ended, 20)
    return ends[0]


def test_a_stage_runs_to_its_end_with_a_log_of_its_own(spec: RunSpec, runner: StageRunner, tmp_path: Path) -> None:
    runner.start(stage(spec, "quick"))
    assert end_of(runner) == StageEnd("done", 0, "stage quick is done")
    assert runner.stage is None
    assert runner.poll() is None, "an end is reported once"
    assert "it runs" in (tmp_path / "logs" / "quick.log").read_text()


def test_a_stage_that_is_current_is_skipped(
    spec: RunSpec, rundir: RunDir, runner: StageRunner, server: ForkServer, tmp_path: Path
) -> None:
    runner.start(stage(spec, "quick"))
    end_of(runner)
    again = runner_of(rundir, server, tmp_path, attempt=2)
    again.start(stage(spec, "quick"))
    assert end_of(again).state == "skipped"


def test_a_stage_that_fails_says_why(spec: RunSpec, runner: StageRunner) -> None:
    runner.start(stage(spec, "fails"))
    assert end_of(runner) == StageEnd("failed", 1, "stage fails failed: ValueError: no luck")


def test_a_stage_that_is_stopped_ends_soon_and_is_recorded_as_stopped(
    spec: RunSpec, rundir: RunDir, runner: StageRunner
) -> None:
    runner.start(stage(spec, "waits"))
    until(lambda: rundir.exists("begun.json"), 20)
    runner.stop()
    assert end_of(runner) == StageEnd("stopped", 143, "stopped in stage waits")
    record = read_record(rundir, "waits")
    assert record is not None
    assert record.status == "stopped"


def test_a_supervisor_waits_for_the_end_and_stops_a_stage_when_it_is_asked_to(
    spec: RunSpec, rundir: RunDir, runner: StageRunner
) -> None:
    assert asyncio.run(runner.run(stage(spec, "quick"), stopping=lambda: False)).state == "done"
    end = asyncio.run(runner.run(stage(spec, "waits"), stopping=lambda: rundir.exists("begun.json")))
    assert end.state == "stopped"


def test_a_process_with_an_older_fencing_token_has_no_end_to_report(spec: RunSpec, rundir: RunDir, runner: StageRunner) -> None:
    write_attempt_stages(rundir, 1, AttemptStages(token=5))
    runner.start(stage(spec, "quick"), token=4)
    until(lambda: runner.poll() is None and runner.stage is None, 20)
    assert read_record(rundir, "quick") is None


def test_a_stage_that_is_abandoned_leaves_its_record_to_others(spec: RunSpec, rundir: RunDir, runner: StageRunner) -> None:
    runner.start(stage(spec, "waits"))
    until(lambda: rundir.exists("begun.json"), 20)
    runner.abandon()
    assert runner.stage is None
    record = read_record(rundir, "waits")
    assert record is not None
    assert record.status == "running"


@pytest.mark.parametrize(
    ("status", "attempt", "stopped", "expected"),
    [
        (0, 1, False, StageEnd("done", 0, "stage quick is done")),
        (0, 2, False, StageEnd("skipped", 0, "stage quick is done")),
        (65, 1, False, StageEnd("failed", 65, "stage quick failed: no data")),
        (1, 1, False, StageEnd("failed", 1, "stage quick failed: no data")),
        (-9, 2, False, StageEnd("failed", 1, "stage quick failed: its process ended with status -9; see the log of its node")),
        (-15, 2, True, StageEnd("stopped", 143, "stopped in stage quick")),
    ],
)
def test_what_an_exit_status_means(
    spec: RunSpec, rundir: RunDir, status: int, attempt: int, stopped: bool, expected: StageEnd
) -> None:
    write_record(rundir, StageRecord(name="quick", call="own:quick", attempt=1, status="failed", error="no data"))
    assert outcome(stage(spec, "quick"), status, rundir, attempt, stopped=stopped, log=None) == expected


class Node:
    """A node's stages, polled as the agent's main thread does."""

    def __init__(self, link: Link, runner: StageRunner, spec: RunSpec) -> None:
        self.leaving = threading.Event()
        self.stages = OrderedStages(link, runner, self.leaving, spec)
        self.thread = threading.Thread(target=self.stages.wait_assignment)
        self.thread.start()

    def leave(self) -> None:
        self.leaving.set()
        self.thread.join(20)


@pytest.fixture
def node(coordinator: Played, runner: StageRunner, spec: RunSpec) -> Iterator[Node]:
    link = Link(coordinator.endpoint, "n-0", secret=SECRET, beat_s=0.1, timeout_s=5.0)
    link.start()
    coordinator.accept()
    assert isinstance(coordinator.receive(), Hello)
    made = Node(link, runner, spec)
    yield made
    made.leave()
    link.close()


def test_a_node_runs_what_is_ordered_once_and_reports_its_end(coordinator: Played, node: Node) -> None:
    coordinator.send(RunStage("quick", 1))
    assert coordinator.receive() == StageStarted(1)
    assert coordinator.receive() == StageEnded(1, "done", 0, "stage quick is done")
    coordinator.send(RunStage("quick", 1), RunStage("fails", 2))
    assert coordinator.receive() == StageStarted(2), "the same order again is none"
    assert coordinator.receive() == StageEnded(2, "failed", 1, "stage fails failed: ValueError: no luck")


def test_a_stage_that_is_withdrawn_ends_and_is_not_reported(coordinator: Played, node: Node, rundir: RunDir) -> None:
    coordinator.send(RunStage("waits", 1))
    assert coordinator.receive() == StageStarted(1)
    until(lambda: rundir.exists("begun.json"), 20)
    coordinator.send(WithdrawStage(2))
    until(lambda: node.stages.runner.stage is None, 20)
    coordinator.send(RunStage("quick", 3))
    assert coordinator.receive() == StageStarted(3)


def test_a_node_that_is_asked_to_leave_says_so_and_then_how_its_stage_ended(
    coordinator: Played, node: Node, rundir: RunDir
) -> None:
    coordinator.send(RunStage("waits", 1))
    assert coordinator.receive() == StageStarted(1)
    until(lambda: rundir.exists("begun.json"), 20)
    node.leave()
    assert [coordinator.receive() for _ in range(3)] == [
        Leaving(),
        Leaving(),
        StageEnded(1, "stopped", 143, "stopped in stage waits"),
    ]


def test_a_node_that_leaves_begins_nothing(coordinator: Played, node: Node) -> None:
    node.leave()
    assert coordinator.receive() == Leaving()
    coordinator.send(RunStage("quick", 1))
    node.stages.poll()
    assert node.stages.runner.stage is None
