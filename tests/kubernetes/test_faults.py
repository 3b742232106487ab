"""What goes wrong on a cluster, on real nodes with real agents and gloo workers: training goes on, status says why."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.kubernetes.conftest import until
from tests.kubernetes.machines import Machines, events, reach
from zephon.launch.status import RunStatus, look
from zephon.rundir import RunDir

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.timeout(600)]

SAVE_EVERY = 20
WORKER = "tests.agent.toy_worker"
DEAD = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
SETTINGS = [
    "conf=bytes",
    "trainer.steps=100000",
    "elastic.drain_s=10",
    "elastic.heartbeat_s=2",
    "lanes.count=6",
    "global_batch_size=12",
]


def toy(machines: Machines, name: str, nodes: int, settings: dict[str, Any], **options: Any) -> RunDir:
    env = {"ZEPHON_TOY": json.dumps({"steps": 100000, "step_s": 0.05, "save_every": SAVE_EVERY, **settings})}
    spec = machines.spec(name, *SETTINGS, f"nodes={nodes}", worker_env=env, **options)
    return machines.submit(spec, worker=WORKER)


@pytest.fixture(scope="module")
def run(machines: Machines) -> RunDir:
    """One long run on three machines, one node on each, which the tests of this file disturb one after the other."""
    rundir = toy(machines, "faults", 3, {}, topology_spread="require", grace_s=12)
    whole(rundir, "training on three nodes")
    return rundir


def whole(rundir: RunDir, what: str, seconds: float = 120) -> RunStatus:
    return reach(rundir, what, lambda now: now.world_size == 3 and now.state == "TRAINING", seconds)


def steps(machines: Machines, name: str = "faults") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (machines.runs / name / "toy.jsonl").read_text().splitlines()]


def lost_steps(machines: Machines, since: float) -> int:
    """Steps that were trained again after ``since``."""
    seen = [line["step"] for line in steps(machines) if line["time"] >= since]
    return len(seen) - len(set(seen))


def a_victim(machines: Machines) -> tuple[str, list[dict[str, Any]]]:
    """A machine without the coordinator but with nodes, and their pods."""
    (coordinator,) = machines.pods("faults", "coordinator")
    by_machine: dict[str, list[dict[str, Any]]] = {}
    for pod in machines.pods("faults"):
        by_machine.setdefault(pod["spec"]["nodeName"], []).append(pod)
    crowd = by_machine.pop(coordinator["spec"]["nodeName"], [])
    if not by_machine:  # earlier tests have driven all nodes onto one machine: a deleted one is placed on a free one
        machines.kubectl("delete", "pod", crowd[0]["metadata"]["name"], "-n", "faults")
        until(
            "a node elsewhere", lambda: len({pod["spec"].get("nodeName") for pod in machines.pods("faults")} - {None}) > 1, 60
        )
        whole(RunDir(str(machines.runs / "faults")), "three nodes before the fault")
        return a_victim(machines)
    return min(by_machine.items(), key=lambda item: (len(item[1]), item[0]))


def shrunk(rundir: RunDir, generation: int) -> None:
    reach(rundir, "the others train on", lambda now: now.world_size < 3 and now.generation > generation)


def test_the_coordinators_death_disturbs_no_step_and_its_successor_can_resize(machines: Machines, run: RunDir) -> None:
    before, began = look(run), time.time()
    (coordinator,) = machines.pods("faults", "coordinator")
    machines.kubectl("delete", "pod", coordinator["metadata"]["name"], "-n", "faults", "--force")

    def replaced() -> bool:
        found = [
            pod for pod in machines.pods("faults", "coordinator") if pod["metadata"]["uid"] != coordinator["metadata"]["uid"]
        ]
        return any(c["type"] == "Ready" and c["status"] == "True" for pod in found for c in pod["status"].get("conditions", []))

    until("a new coordinator", replaced, 60)
    time.sleep(3)
    after = look(run)
    assert after.generation == before.generation, "the workers were restarted"
    assert after.step > before.step
    assert lost_steps(machines, began) == 0
    victim = machines.pods("faults")[0]["metadata"]["name"]
    machines.kubectl("delete", "pod", victim, "-n", "faults", "--wait=false")
    reach(run, "the new coordinator re-forms", lambda now: now.generation > before.generation)
    whole(run, "three nodes again")
    assert lost_steps(machines, began) == 0


def test_an_agent_killed_by_force_is_named_replaced_and_costs_at_most_a_checkpoint_interval(
    machines: Machines, run: RunDir
) -> None:
    """What the kernel does to a container that is out of memory: exit code 137 and no last word."""
    _, (pod, *_) = a_victim(machines)
    generation, began = look(run).generation, time.time()
    kill = "kill -9 $(pgrep -f zephon.agent | head -1)"
    machines.kubectl("exec", pod["metadata"]["name"], "-n", "faults", "--", "/usr/bin/sh", "-c", kill, check=False)
    told = until("named", lambda: "exit code 137" in (line := look(run).message) and line, 20)
    assert "ask for more memory_mb if OOMKilled" in told
    shrunk(run, generation)
    whole(run, "three nodes again")
    assert lost_steps(machines, began) <= SAVE_EVERY
    writers_agree(machines)


def test_a_drained_machine_costs_no_step(machines: Machines, run: RunDir) -> None:
    began, (machine, _) = time.time(), a_victim(machines)
    generation = look(run).generation
    machines.kubectl("drain", machine, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=60s")
    try:
        until("told what is missing", lambda: "no pod yet; one that ended is replaced after 10 s" in look(run).message, 15)
        shrunk(run, generation)
        whole(run, "three nodes again, elsewhere")
    finally:
        machines.kubectl("uncordon", machine)
    assert lost_steps(machines, began) == 0
    assert machines.api.get("Job", "faults", "faults-1")["status"].get("completedIndexes", "") == ""


def test_a_cut_cable_shrinks_the_run_and_a_mended_one_grows_it(machines: Machines, run: RunDir) -> None:
    machine, _ = a_victim(machines)
    cable = f"v{machine.removeprefix('node-')}"
    generation = look(run).generation
    machines.tool("enter", "control", "ip", "link", "set", cable, "down")
    try:
        shrunk(run, generation)
    finally:
        machines.tool("enter", "control", "ip", "link", "set", cable, "up")
    whole(run, "three nodes again", 180)
    writers_agree(machines)


def test_an_old_container_beside_its_replacement_is_no_second_writer(machines: Machines, run: RunDir) -> None:
    """The kubelet is gone and the machine is declared dead: its container runs on, and the index gets a second agent."""
    machine, (old, *_) = a_victim(machines)
    generation = look(run).generation
    machines.tool("daemon-stop", machine, "kubelet")
    try:
        until("the hint", lambda: f"kubectl taint nodes {machine} {DEAD}" in look(run).message, 120)
        machines.kubectl("taint", "nodes", machine, DEAD)
        index = int(old["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"])
        until("another pod of the index", lambda: machines.uids("faults").get(index) not in (None, old["metadata"]["uid"]), 200)
        successor = machines.uids("faults")[index]
        until("it stands by", lambda: any(successor in str(event.get("node")) for event in events(machines.runs, "faults")), 90)
        before = look(run)
        reach(run, "training goes on undisturbed", lambda now: now.step > before.step + 20 and now.world_size == 3)
        assert look(run).generation == generation, "the old container was disturbed although nothing was gained"
    finally:
        machines.tool("daemon-start", machine, "kubelet")
        machines.kubectl("taint", "nodes", machine, f"{DEAD}-", check=False)
    until(
        "the old containers have left and their successors train",
        lambda: members(run) == set(machines.uids("faults").values()),
        180,
    )
    whole(run, "three nodes again")
    writers_agree(machines)


def members(run: RunDir) -> set[str]:
    """UIDs of the pods of the present generation."""
    return {name.split("@")[1] for name in run.read_json("generation.json")["nodes"]}


def test_a_machine_without_power_is_survived_and_the_way_to_replace_its_pod_is_told(machines: Machines, run: RunDir) -> None:
    machine, _ = a_victim(machines)
    generation = look(run).generation
    machines.tool("machine-stop", machine)
    began = time.time()
    shrunk(run, generation)
    assert time.time() - began < 30
    hint = f"kubectl taint nodes {machine} {DEAD}"
    until("the hint", lambda: hint in look(run).message, 120)
    machines.kubectl("taint", "nodes", machine, DEAD)
    whole(run, "three nodes again, elsewhere")
    machines.tool("machine-start", machine)
    machines.kubectl("taint", "nodes", machine, f"{DEAD}-")
    whole(run, "three nodes again", 180)
    writers_agree(machines)


def writers_agree(machines: Machines) -> None:
    """No step was written by two generations at once: generations follow each other in the file."""
    order = [line["generation"] for line in steps(machines)]
    assert order == sorted(order)


def test_jobs_that_cannot_work_end_or_say_why(machines: Machines) -> None:
    """Four hopeless jobs side by side."""
    contract = toy(machines, "contract", 2, {"exit_at_start": 65})
    crash = toy(machines, "crash", 2, {"exit_at_start": 3})
    image = toy(machines, "image", 1, {}, image="kit.test/nosuch:1", image_pull_policy="IfNotPresent")
    place = toy(machines, "place", 1, {}, node_selector={"pool": "gpu"})
    told = until("the image", lambda: "the image cannot be pulled" in (now := look(image).message) and now, 60)
    assert "kit.test/nosuch:1" in told
    assert "cannot be placed: 0/3 nodes are available" in look(place).message
    for rundir, cause in ((contract, "65"), (crash, "3")):
        until(f"{rundir.url} has failed", lambda rundir=rundir: look(rundir).state == "FAILED", 120)
        (finish,) = [event for event in events(machines.runs, rundir.root.rsplit("/", 1)[-1]) if event["event"] == "finish"]
        assert f"status {cause}" in finish["cause"]
        assert "PodFailurePolicy" in look(rundir).message
    generations = [event for event in events(machines.runs, "crash") if event["event"] == "generation"]
    assert len(generations) == 1, "a crash before the first step was tried again"


def test_nodes_wait_for_a_coordinator_that_comes_late_and_the_job_completes(machines: Machines) -> None:
    overlay = machines.options("late")["overlay"] | {"coordinator": {"spec": {"replicas": 0}}}
    rundir = toy(machines, "late", 1, {"steps": 20}, overlay=overlay)
    until("the node runs", lambda: "1 nodes run" in look(rundir).message, 60)
    time.sleep(12)
    machines.kubectl("scale", "deployment", "late-1-coordinator", "--replicas=1", "-n", "late")
    reach(rundir, "the last step", lambda now: now.state == "DONE")
    assert machines.api.get("Job", "late", "late-1")["status"]["completedIndexes"] == "0"
    assert machines.pods("late") == []
