"""Kueue, the real one: waiting, admission, both ways of rescaling, preemption, stop, wrong queues named before submit."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from torchx.runner import Runner

from tests.kubernetes.conftest import ROOT, Plane, tool, until, until_said
from tests.kubernetes.samples import sample_app
from zephon.errors import ConfigError
from zephon.launch.backends.kubernetes.errors import Forbidden
from zephon.launch.backends.kubernetes.living import check_alone
from zephon.launch.backends.kubernetes.queue import workloads_of
from zephon.launch.backends.kubernetes.scheduler import KubernetesScheduler, create_scheduler
from zephon.run.state import State

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

QUOTA = 4


class Queue:
    """A namespace with a queue of four CPUs, and a Runner."""

    def __init__(self, plane: Plane, kueue: Any, user: str = "admin") -> None:
        self.plane, self.kueue, self.namespace = plane, kueue, plane.namespace()
        self.name = self.namespace
        kueue.queue(
            self.name,
            {"cpu": QUOTA, "memory": "64Gi"},
            namespace=self.namespace,
            preemption={"withinClusterQueue": "LowerPriority"},
        )
        until("the queue is active", self.active, holds=bool)
        self.runner = Runner("test", {"kubernetes": create_scheduler})
        self.cfg: dict[str, Any] = {
            "namespace": self.namespace,
            "kubeconfig": plane.kubeconfig(user),
            "volumes": {"runs": {"mount": "/runs", "empty_dir": "1Gi"}},
            "queue": self.name,
        }

    def active(self) -> bool:
        """Whether Kueue takes jobs for it: a queue that has just been made is none yet."""
        conditions = self.plane.get("LocalQueue", self.name, self.namespace).get("status", {}).get("conditions", [])
        return any(c["type"] == "Active" and c["status"] == "True" for c in conditions)

    @property
    def scheduler(self) -> KubernetesScheduler:
        found: KubernetesScheduler = self.runner._scheduler("kubernetes")
        return found

    def submit(self, name: str = "a", **given: Any) -> str:
        nodes = given.pop("nodes", 4)
        handle: str = self.runner.run(sample_app(name=name, nodes=nodes), "kubernetes", {**self.cfg, **given})
        return handle.rsplit("/", 1)[-1]

    def line(self, app_id: str) -> str:
        found = self.scheduler.summary(app_id)
        assert found is not None
        return found.line

    def state(self, app_id: str) -> State:
        found = self.scheduler.summary(app_id)
        assert found is not None
        return found.state

    def running(self, app_id: str) -> dict[str, str]:
        """UIDs of the bound pods by index, each reported as running; deletions are confirmed on the way."""
        self.plane.ends_deleted_pods(self.namespace)
        run = app_id.split(":")[1].rsplit("-", 1)[0]
        uids = {}
        for pod in self.plane.find(self.namespace, "Pod", labels=f"zephon/role=node,zephon/run={run}"):
            if pod["spec"].get("nodeName") and not pod["metadata"].get("deletionTimestamp"):
                if pod["status"]["phase"] == "Pending":
                    self.plane.play_kubelet(self.namespace, pod["metadata"]["name"], phase="Running")
                if pod["status"]["phase"] in ("Pending", "Running"):
                    uids[pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]] = pod["metadata"]["uid"]
        return uids

    def seen(self, app_id: str) -> dict[str, Any]:
        """What the Job controller and Kueue have seen of the pods. They look later than a test does, and decide by this."""
        job = self.plane.get("Job", app_id.split(":")[1], self.namespace)
        workloads = workloads_of(self.plane.api, job)
        conditions = (workloads[-1].get("status") or {}).get("conditions") or [] if workloads else []
        pods_ready = next((f"{c['status']} {c['reason']}" for c in conditions if c["type"] == "PodsReady"), "")
        return {"ready": job["status"].get("ready", 0), "PodsReady": pods_ready}

    def runs(self, app_id: str, count: int) -> dict[str, str]:
        """Waits until so many pods run and the Job controller and Kueue have seen it; returns the pods' UIDs by index."""
        pods = until(f"{count} pods of {app_id} run", lambda: self.running(app_id), holds=lambda found: len(found) == count)
        until(
            f"Job and Workload of {app_id} have seen {count} ready pods",
            lambda: self.seen(app_id),
            holds=lambda seen: seen["ready"] == count and seen["PodsReady"].startswith("True"),
        )
        return pods

    def stops(self, app_id: str) -> None:
        """Waits until the pods have ended and the job counts as stopped."""
        until(
            f"{app_id} is stopped",
            lambda: (self.running(app_id), self.state(app_id)),
            holds=lambda seen: seen == ({}, "STOPPED"),
        )

    def says(self, app_id: str, words: str) -> str:
        """Waits for these words in the job's line, while the machines report what its pods do."""

        def line() -> str:
            self.running(app_id)
            return self.line(app_id)

        return until_said(words, line)


# Long enough that no other test of this file meets it, and short where a pod is lost in the middle of a run.
PODS_READY = {
    "timeout": "120s",
    "recoveryTimeout": "8s",
    "requeuingStrategy": {"timestamp": "Eviction", "backoffBaseSeconds": 1},
}


@pytest.fixture(scope="module")
def kueue(plane: Plane) -> Iterator[Any]:
    with tool("kueue", "kueue").Kueue(plane.real, config={"waitForPodsReady": PODS_READY}) as found:
        high = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", "metadata": {"name": "high"}}
        found.apply({**high, "value": 1000, "description": ""})
        yield found


@pytest.fixture
def queue(plane: Plane, kueue: Any) -> Iterator[Queue]:
    found = Queue(plane, kueue)
    with found.runner:
        yield found


def test_a_waiting_job_says_why_and_starts_when_there_is_room(queue: Queue) -> None:
    first = queue.submit("a", nodes=3)
    queue.runs(first, 3)
    second = queue.submit("b", nodes=2)
    assert queue.says(second, "1 more needed").startswith("waiting in the queue: Pending: couldn't assign flavors")
    assert queue.state(second) == "QUEUED"
    queue.scheduler.rescale(first, 2)
    queue.runs(second, 2)
    assert "2 nodes run" in queue.line(second)


def test_nodes_that_have_ended_give_their_quota_back_while_the_last_one_does_the_stages_behind_training(queue: Queue) -> None:
    app = queue.submit("a", nodes=4)
    before = queue.runs(app, 4)
    waiting = queue.submit("b", nodes=3)
    queue.says(waiting, "more needed")
    for pod in queue.plane.find(queue.namespace, "Pod", labels="zephon/role=node,zephon/run=a"):
        if pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] != "0":
            queue.plane.play_kubelet(queue.namespace, pod["metadata"]["name"], phase="Succeeded", exit_code=0)
    queue.runs(waiting, 3)
    assert queue.running(app) == {"0": before["0"]}
    assert queue.line(app).startswith("1 of 4 nodes run, 3 are done")
    queue.scheduler.stop(app)
    queue.stops(app)
    queue.scheduler.resume(app)
    assert list(queue.runs(app, 1)) == ["0"], "what has ended is not started again, and asks for no quota"


def test_a_job_that_can_never_fit_says_so(queue: Queue) -> None:
    app = queue.submit("a", nodes=6)
    queue.says(app, "maximum capacity (4)")


def test_an_elastic_rescale_keeps_its_pods_and_growth_waits_beside_them(queue: Queue) -> None:
    app = queue.submit("a", nodes=4)
    before = queue.runs(app, 4)
    assert queue.scheduler.preview(app, 2) == "nodes 0..1 stay, 2..3 drain and leave"
    queue.scheduler.rescale(app, 2)
    kept = queue.runs(app, 2)
    assert kept == {i: before[i] for i in "01"}
    other = queue.submit("b", nodes=2)
    queue.runs(other, 2)
    assert queue.scheduler.rescale(app, 4).note == "nodes 0..1 stay, 2..3 join as quota allows"
    queue.says(app, "asked for 4 nodes, have 2, the others wait for quota")
    assert queue.running(app) == kept
    assert queue.state(app) == "RUNNING"
    queue.plane.kubectl("delete", "job", other.split(":")[1], "-n", queue.namespace, "--wait=false")
    assert queue.runs(app, 4).items() > kept.items()


def test_stop_gives_the_quota_back_and_resume_queues_again(queue: Queue) -> None:
    app = queue.submit("a", nodes=4)
    queue.runs(app, 4)
    queue.scheduler.stop(app)
    queue.stops(app)
    other = queue.submit("b", nodes=4)
    queue.runs(other, 4)
    queue.scheduler.resume(app)
    queue.says(app, "waiting in the queue: Pending")


def test_a_preempted_job_waits_and_comes_back_by_itself(queue: Queue) -> None:
    low = queue.submit("low", nodes=4)
    queue.runs(low, 4)
    high = queue.submit("high", nodes=2, queue_priority="high")
    queue.runs(high, 2)
    assert queue.says(low, "insufficient").startswith("waiting in the queue: Pending: couldn't assign flavors")
    assert queue.running(low) == {}
    assert queue.state(low) == "QUEUED"
    queue.plane.kubectl("delete", "job", high.split(":")[1], "-n", queue.namespace, "--wait=false")
    queue.runs(low, 4)


def test_a_grown_job_that_was_preempted_is_given_up_by_the_queue_in_its_own_words(queue: Queue) -> None:
    """Kueue 0.17's slices of both sizes contradict each other; a Kueue that has mended it makes this test fail."""
    low = queue.submit("low", nodes=2)
    queue.runs(low, 2)
    queue.scheduler.rescale(low, 4)
    queue.runs(low, 4)
    high = queue.submit("high", nodes=2, queue_priority="high")
    queue.runs(high, 2)
    queue.says(low, "waiting in the queue: Pending")
    queue.plane.kubectl("delete", "job", high.split(":")[1], "-n", queue.namespace, "--wait=false")
    line = queue.says(low, "the queue has given it up: FailedToStart: ")
    assert line.endswith("; resume starts a new attempt")
    assert queue.state(low) == "FAILED"
    check_alone(queue.plane.api, queue.namespace, "/runs/low")  # a new attempt may start


def test_a_late_replacement_may_cost_the_whole_job_and_status_says_so_before_and_after(queue: Queue) -> None:
    """Kueue gives a lost pod's successor so long; then every pod is stopped, and the job comes back when there is room."""
    app = queue.submit("a", nodes=3)
    before = queue.runs(app, 3)
    with queue.plane.no_new_pods():
        (victim,) = queue.plane.find(queue.namespace, "Pod", labels="batch.kubernetes.io/job-completion-index=1")
        queue.plane.api.delete("Pod", queue.namespace, victim["metadata"]["name"])

        warned = queue.says(app, "after its recovery timeout (recoveryTimeout of waitForPodsReady) it stops all nodes")
        assert warned.startswith("2 of 3 nodes run")
        until("all pods are stopped", lambda: queue.running(app), holds=lambda pods: not pods)
        late = queue.says(app, "cannot be placed: 0/2 nodes are available")
        assert "after its start timeout (timeout of waitForPodsReady) it stops all nodes" in late
        assert queue.state(app) == "STARTING"
        assert queue.plane.get("Job", app.split(":")[1], queue.namespace)["status"].get("failedIndexes", "") == ""
    after = queue.runs(app, 3)
    assert not set(after.values()) & set(before.values())
    assert "the queue" not in queue.line(app), "no threat is left"


def test_no_job_is_scaled_below_its_finished_nodes_and_one_that_was_is_told_with_the_way_back(queue: Queue) -> None:
    """Kueue keeps counting the old size for ever, as its check of finished pods refuses the new one: quota is lost."""
    app = queue.submit("a", nodes=4)
    queue.runs(app, 4)
    for index in (2, 3):
        (pod,) = queue.plane.find(queue.namespace, "Pod", labels=f"batch.kubernetes.io/job-completion-index={index}")
        queue.plane.play_kubelet(queue.namespace, pod["metadata"]["name"], phase="Succeeded", exit_code=0)

    def given_back() -> int:
        workload = queue.kueue.workload("a-1", namespace=queue.namespace)
        return sum(int(pods["count"]) for pods in workload["status"].get("reclaimablePods") or [])

    until("the quota of both finished nodes is free", given_back, holds=lambda count: count == 2)
    with pytest.raises(ConfigError, match="2 of 4 nodes have finished the last step"):
        queue.scheduler.rescale(app, 1)
    one = '{"spec":{"parallelism":1,"completions":1}}'  # somebody does it all the same
    queue.plane.kubectl("patch", "job", "a-1", "-n", queue.namespace, "--type=merge", "-p", one)
    queue.says(app, "the queue still counts 4 nodes and the job has 1")

    def refusals() -> list[str]:
        ours, refused = f'"namespace":"{queue.namespace}"', "Invalid value: 2: should be less or equal to 1"
        return [line for line in queue.kueue.log().splitlines() if ours in line and refused in line]

    until("Kueue has tried and failed", refusals)
    assert "rescale to 4 takes it back" in queue.line(app), "Kueue has learnt it: this test and the warning can go"
    assert queue.scheduler.rescale(app, 4).after == 4
    until("it is taken back", lambda: queue.line(app), holds=lambda line: "the queue still counts" not in line)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"queue": "nosuch"}, r"queue='nosuch' is not in namespace test-\d+(.|\n)*use one of test-"),
        ({"queue_priority": "nosuch"}, "queue_priority='nosuch' is no WorkloadPriorityClass"),
    ],
)
def test_a_wrong_queue_or_priority_is_named_before_submit(queue: Queue, given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        queue.submit("a", **given)
    assert queue.plane.find(queue.namespace, "Job") == []


def test_a_queue_on_hold_is_named_before_submit(queue: Queue) -> None:
    queue.plane.kubectl("patch", "clusterqueue", queue.name, "--type=merge", "-p", '{"spec":{"stopPolicy":"Hold"}}')
    queue.plane.kubectl(
        "wait", "--for=condition=Active=false", f"localqueue/{queue.name}", "-n", queue.namespace, "--timeout=60s"
    )
    with pytest.raises(ConfigError, match="is not active"):
        queue.submit("a")
    assert queue.plane.find(queue.namespace, "Job") == []


def test_who_may_not_change_workloads_is_told_what_to_ask_for(plane: Plane, kueue: Any) -> None:
    queue = Queue(plane, kueue, user="bob")
    documents = yaml.safe_load_all((ROOT / "tests/kubernetes/golden/k8s-gpu.yaml").read_text())
    roles = {d["metadata"]["name"]: d for d in documents if d["kind"] == "Role"}
    for name, role in roles.items():
        role = copy.deepcopy(role)
        role["metadata"]["namespace"] = queue.namespace
        if name == "zephon-queue-user":
            for rule in role["rules"]:
                rule["verbs"] = ["get", "list"]
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "roleRef": reference,
            "subjects": [subject],
        }
        plane.apply(role, {**binding, "metadata": {"name": name, "namespace": queue.namespace}})
    plane.until_allowed("bob", "create", "jobs.batch", queue.namespace)
    plane.until_allowed("bob", "list", "workloads.kueue.x-k8s.io", queue.namespace)
    with queue.runner:
        app = queue.submit("a")
        before = queue.runs(app, 4)
        with pytest.raises(Forbidden, match="suspending the Job itself would only restart all its pods"):
            queue.scheduler.stop(app)
        assert queue.running(app) == before


def test_where_kueue_does_not_scale_in_place_it_is_said_before_it_happens(plane: Plane, kueue: Any) -> None:
    """Last in this file: it starts Kueue again with the feature off."""
    kueue.stop()
    kueue.feature_gates = {**kueue.feature_gates, "ElasticJobsViaWorkloadSlices": False}
    kueue.up()
    queue = Queue(plane, kueue)
    with queue.runner:
        app = queue.submit("a", nodes=4)
        before = queue.runs(app, 4)
        assert "every pod is stopped and started again" in queue.scheduler.preview(app, 2)
        assert "every pod is stopped and started again" in queue.scheduler.rescale(app, 2).note
        until(
            "two other pods",
            lambda: set(queue.running(app).values()),
            holds=lambda uids: len(uids) == 2 and not uids & set(before.values()),
        )
