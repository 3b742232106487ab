"""What goes wrong on a cluster, on real nodes with real agents and gloo workers: training goes on, status says why.

Every fault strikes a run of its own: the Job controller doubles its pause with each failure of an index.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.conftest import until, until_said
from tests.kubernetes.machines import TRAINS_S, Machines, events, reach, until_formed
from zephon.launch.status import RunStatus, status_of
from zephon.run.directory import RunDir
from zephon.run.generation import read_generation

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.timeout(600)]

SAVE_EVERY = 20
LATE_S = 12.0
WORKER = "tests.agent.toy_worker"
DEAD = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
SETTINGS = [
    "conf=bytes",
    "elastic.drain_s=10",
    "elastic.heartbeat_s=2",
    "lanes.count=6",
    "global_batch_size=12",
]
_numbers = itertools.count(1)


def toy(machines: Machines, name: str, nodes: int, settings: dict[str, Any], *, worker: str = WORKER, **options: Any) -> RunDir:
    given = {"steps": 100000, "step_s": 0.05, "save_every": SAVE_EVERY, **settings}
    env = {"ZEPHON_TOY": json.dumps(given)}
    steps = f"trainer.steps={given['steps']}"  # a run is done when its ledger has them all
    spec = machines.spec(name, *SETTINGS, steps, f"nodes={nodes}", worker_env=env, grace_s=12, **options)
    return machines.submit(spec, worker=worker)


class Run:
    """A run of three nodes on three machines, and what a test looks at while it breaks something."""

    def __init__(self, machines: Machines, name: str) -> None:
        self.machines, self.name = machines, name
        self.rundir = toy(machines, name, 3, {}, topology_spread="require")
        self.whole("training on three nodes")
        self.began, self.first = time.time(), self.status()

    def status(self) -> RunStatus:
        return status_of(self.rundir)

    def pods(self, role: str = "node") -> list[dict[str, Any]]:
        return self.machines.pods(self.name, role)

    def kubectl(self, verb: str, *args: str, check: bool = True) -> str:
        return self.machines.kubectl(verb, "-n", self.name, *args, check=check)

    def whole(self, what: str) -> None:
        reach(self.rundir, what, lambda now: now.world_size == 3 and now.state == "TRAINING")

    def shrunk(self) -> dict[str, Any]:
        """Waits until the others have formed a smaller generation, and returns its event; it may have grown again since."""
        return until_formed(self.machines.runs, self.name, self.first.generation, lambda size: size < 3)

    def says(self, words: str) -> str:
        return until_said(words, lambda: self.status().message, TRAINS_S)

    def victim(self) -> tuple[str, dict[str, Any]]:
        """A machine without the coordinator, and the node's pod on it."""
        (coordinator,) = self.pods("coordinator")
        pod = next(pod for pod in self.pods() if pod["spec"]["nodeName"] != coordinator["spec"]["nodeName"])
        return pod["spec"]["nodeName"], pod

    def lines(self) -> list[dict[str, Any]]:
        text = (self.machines.runs / self.name / "toy.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def lost_steps(self) -> int:
        """Steps that were trained again since the fault."""
        seen = [line["step"] for line in self.lines() if line["time"] >= self.began]
        return len(seen) - len(set(seen))

    def one_writer(self) -> bool:
        """No step was written by two generations at once: generations follow each other in the file."""
        order = [line["generation"] for line in self.lines()]
        return order == sorted(order)

    def members(self) -> set[str]:
        """UIDs of the pods of the present generation."""
        newest = read_generation(self.rundir)
        assert newest is not None
        return {name.split("@")[1] for name in newest.nodes}


@pytest.fixture
def run(machines: Machines) -> Iterator[Run]:
    found = Run(machines, machines.name(f"fault-{next(_numbers)}"))
    yield found
    # In the foreground: a Job that goes with its namespace leaves its pods behind, whose finalizers nobody takes off.
    found.kubectl("delete", "job", "--all", "--cascade=foreground", "--wait=false")


def test_the_coordinators_death_disturbs_no_step_and_its_successor_can_resize(run: Run) -> None:
    (coordinator,) = run.pods("coordinator")
    run.kubectl("delete", "pod", coordinator["metadata"]["name"], "--force")

    def greeted() -> set[str]:
        """The nodes that have said hello to the new coordinator: the old one has met them before the fault."""
        happened = events(run.machines.runs, run.name)
        return {event["node"] for event in happened if event["event"] == "node_hello" and event["time"] > run.began}

    until("all nodes have found the new coordinator", greeted, TRAINS_S, holds=lambda nodes: len(nodes) == 3)
    before = run.status()
    after = reach(run.rundir, "training goes on", lambda now: now.step > before.step + SAVE_EVERY)
    assert after.generation == run.first.generation, "the workers were restarted"
    run.kubectl("delete", "pod", run.pods()[0]["metadata"]["name"], "--wait=false")
    run.shrunk()
    run.whole("three nodes again")
    assert run.lost_steps() == 0


def test_an_agent_killed_by_force_is_named_replaced_and_costs_at_most_a_checkpoint_interval(run: Run) -> None:
    """What the kernel does to a container that is out of memory: exit code 137 and no last word."""
    _, pod = run.victim()
    kill = "kill -9 $(pgrep -f zephon.agent | head -1)"
    run.kubectl("exec", pod["metadata"]["name"], "--", "/usr/bin/sh", "-c", kill, check=False)
    assert "ask for more memory_mb if OOMKilled" in run.says("exit code 137")
    run.shrunk()
    run.whole("three nodes again")
    assert run.lost_steps() <= SAVE_EVERY
    assert run.one_writer()


@pytest.mark.usefixtures("power")
def test_a_drained_machine_costs_no_step(run: Run) -> None:
    machine, _ = run.victim()
    try:
        run.machines.kubectl("drain", machine, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=60s")
        run.shrunk()
        run.whole("three nodes again, elsewhere")
    finally:
        run.machines.kubectl("uncordon", machine)
    assert run.lost_steps() == 0
    assert run.machines.api.get("Job", run.name, f"{run.name}-1")["status"].get("completedIndexes", "") == ""


@pytest.mark.usefixtures("power")
def test_a_cut_cable_shrinks_the_run_and_a_mended_one_grows_it(run: Run) -> None:
    machine, _ = run.victim()
    cable = f"v{machine.removeprefix('node-')}"
    run.machines.tool("enter", "control", "ip", "link", "set", cable, "down")
    try:
        run.shrunk()
    finally:
        run.machines.tool("enter", "control", "ip", "link", "set", cable, "up")
    run.whole("three nodes again")
    assert run.lost_steps() <= SAVE_EVERY
    assert run.one_writer()


@pytest.mark.usefixtures("power")
def test_an_old_container_beside_its_replacement_is_no_second_writer(run: Run) -> None:
    """The kubelet is gone and the machine is declared dead: its container runs on, and the index gets a second agent."""
    machine, old = run.victim()
    index = int(old["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"])
    run.machines.tool("daemon-stop", machine, "kubelet")
    try:
        run.says(f"kubectl taint nodes {machine} {DEAD}")
        run.machines.kubectl("taint", "nodes", machine, DEAD)
        successor = until(
            "another pod of the index",
            lambda: run.machines.uids(run.name).get(index, ""),
            TRAINS_S,
            holds=lambda uid: uid not in ("", old["metadata"]["uid"]),
        )
        until(
            "it stands by",
            lambda: {str(event.get("node")) for event in events(run.machines.runs, run.name)},
            TRAINS_S,
            holds=lambda nodes: any(successor in node for node in nodes),
        )
        before = run.status()
        reach(run.rundir, "training goes on", lambda now: now.step > before.step + 20 and now.world_size == 3)
        assert run.status().generation == run.first.generation, "the old container was disturbed although nothing was gained"
    finally:
        run.machines.tool("daemon-start", machine, "kubelet")
        run.machines.kubectl("taint", "nodes", machine, f"{DEAD}-", check=False)
    until(
        "the successor has its place",
        lambda: (run.members(), set(run.machines.uids(run.name).values())),
        TRAINS_S,
        holds=lambda seen: seen[0] == seen[1],
    )
    run.whole("three nodes again")
    assert run.lost_steps() <= SAVE_EVERY
    assert run.one_writer()


@pytest.mark.usefixtures("power")
def test_a_machine_without_power_is_survived_and_the_way_to_replace_its_pod_is_told(run: Run) -> None:
    machine, _ = run.victim()
    run.machines.tool("machine-stop", machine)
    try:
        assert run.shrunk()["time"] - run.began < 40
        run.says(f"kubectl taint nodes {machine} {DEAD}")
        run.machines.kubectl("taint", "nodes", machine, DEAD)
        run.whole("three nodes again, elsewhere")
    finally:
        run.machines.tool("machine-start", machine)
        run.machines.kubectl("taint", "nodes", machine, f"{DEAD}-", check=False)
    assert run.lost_steps() <= SAVE_EVERY
    assert run.one_writer()


def test_jobs_that_cannot_work_end_or_say_why(machines: Machines) -> None:
    """Four hopeless jobs side by side."""
    number = next(_numbers)
    names = {what: machines.name(f"{what}-{number}") for what in ("contract", "crash", "image", "place")}
    contract = toy(machines, names["contract"], 2, {"exit_at_start": 65})
    crash = toy(machines, names["crash"], 2, {"exit_at_start": 3})
    image = toy(machines, names["image"], 1, {}, image="127.0.0.1:9/nosuch:1", image_pull_policy="IfNotPresent")
    place = toy(machines, names["place"], 1, {}, node_selector={"pool": "none-of-yours"})
    assert "127.0.0.1:9/nosuch:1" in until_said("the image cannot be pulled", lambda: status_of(image).message)
    until_said("cannot be placed: 0/", lambda: status_of(place).message)
    for rundir, cause in ((contract, "65"), (crash, "3")):
        failed = until(
            f"{rundir.url} has failed", partial(status_of, rundir), TRAINS_S, holds=lambda now: now.state == "FAILED"
        )
        (finish,) = [event for event in events(machines.runs, rundir.root.rsplit("/", 1)[-1]) if event["event"] == "finish"]
        assert f"status {cause}" in finish["cause"]
        assert "PodFailurePolicy" in failed.message
    generations = [event for event in events(machines.runs, names["crash"]) if event["event"] == "generation"]
    assert len(generations) == 1, "a crash before the first step was tried again"


def seconds_since_start(pod: dict[str, Any]) -> float:
    began = datetime.fromisoformat(pod["status"]["startTime"].replace("Z", "+00:00"))
    return (datetime.now(UTC) - began).total_seconds()


EDITED = f"""
import runpy, sys
from pathlib import Path
Path(sys.argv[sys.argv.index("--run") + 1], "edited").write_text(__file__)
runpy.run_module("{WORKER}", run_name="__main__")
"""


def test_nodes_wait_for_a_coordinator_that_comes_late_and_complete_the_job_with_the_code_of_a_work_folder(
    machines: Machines, tmp_path: Path
) -> None:
    (tmp_path / "edited_worker.py").write_text(EDITED)
    name = machines.name(f"late-{next(_numbers)}")
    folder = {"workspace": str(tmp_path)}
    overlay = machines.options(name, **folder)["overlay"] | {"coordinator": {"spec": {"replicas": 0}}}
    rundir = toy(machines, name, 1, {"steps": 20}, worker="edited_worker", overlay=overlay, **folder)
    until_said("1 nodes run", lambda: status_of(rundir).message)
    (pod,) = machines.pods(name)
    until("the node has waited for it", lambda: seconds_since_start(pod), holds=lambda waited: waited > LATE_S)
    machines.kubectl("scale", "deployment", f"{name}-1-coordinator", "--replicas=1", "-n", name)
    reach(rundir, "the last step", lambda now: now.state == "DONE")
    assert Path(rundir.root, "edited").read_text() == "/workspace/edited_worker.py"
    assert machines.api.get("Job", name, f"{name}-1")["status"]["completedIndexes"] == "0"
    until("the pod has ended", lambda: machines.uids(name), holds=lambda left: not left)
