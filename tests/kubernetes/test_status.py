"""Every trouble is one line that names its reason."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from zephon.launch.backends.kubernetes.queue import Queued, read_workloads
from zephon.launch.backends.kubernetes.status import Summary, summarize

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def job(
    *, conditions: dict[str, str] | None = None, suspend: bool = False, queue: bool = False, **metadata: Any
) -> dict[str, Any]:
    listed = [{"type": t, "status": "True", "reason": "R", "message": m} for t, m in (conditions or {}).items()]
    labels = {"kueue.x-k8s.io/queue-name": "team"} if queue else {}
    return {
        "metadata": {"name": "exp1-1", "labels": labels, **metadata},
        "spec": {"completions": 2, "suspend": suspend},
        "status": {"conditions": listed},
    }


def pod(index: int, phase: str, *, role: str = "node", deleted_s: float | None = None, **status: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": f"exp1-1-{index}-aaaaa",
        "uid": f"u{index}",
        "labels": {"zephon/role": role, "batch.kubernetes.io/job-completion-index": str(index)},
    }
    if deleted_s is not None:
        metadata["deletionTimestamp"] = (NOW - timedelta(seconds=deleted_s)).isoformat().replace("+00:00", "Z")
    return {"metadata": metadata, "spec": {"nodeName": "m-1"}, "status": {"phase": phase, **status}}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"containerStatuses": [{"state": {"waiting": {"reason": reason, "message": message}}}]}


def ended(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {"containerStatuses": [{"state": {"terminated": {"exitCode": code, "reason": reason, "message": message}}}]}


def condition(kind: str, value: str, reason: str, message: str) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": value, "reason": reason, "message": message}]}


def summary_of(*pods: dict[str, Any], queue_reason: str | None = None, **given: Any) -> Summary:
    return summarize(job(**given), pods, queued=Queued(reason=queue_reason), now=NOW)


@pytest.mark.parametrize(
    ("trouble", "line"),
    [
        (
            pod(1, "Pending", **waiting("ImagePullBackOff", 'Back-off pulling "x"')),
            'the image cannot be pulled: Back-off pulling "x"',
        ),
        (pod(1, "Pending", **condition("PodScheduled", "False", "Unschedulable", "0/3 nodes")), "cannot be placed: 0/3 nodes"),
        (pod(1, "Pending", **condition("PodScheduled", "False", "SchedulingGated", "")), "waits for quota (Kueue)"),
        (pod(1, "Failed", **ended(137, "OOMKilled")), "ask for more memory_mb"),
        (pod(1, "Failed", **ended(1, message="Traceback\nValueError: x")), "exit code 1 (crash): ValueError: x"),
        (pod(1, "Failed", **ended(65)), "exit code 65 (configuration or contract error)"),
        (
            pod(1, "Failed", **condition("DisruptionTarget", "True", "EvictionByEvictionAPI", "drain")),
            "evicted (kubectl drain, an autoscaler or another caller of the eviction API): EvictionByEvictionAPI: drain",
        ),
        (pod(1, "Failed", **condition("DisruptionTarget", "True", "New", "why")), "taken away by the cluster: New: why"),
        (
            pod(1, "Failed", **condition("DisruptionTarget", "True", "PreemptionByScheduler", "x")),
            "preempted by a pod of higher",
        ),
        (
            pod(1, "Running", **condition("DisruptionTarget", "True", "DeletionByTaintManager", "x")),
            "its machine m-1 is lost, or was emptied by a taint; the pod is replaced only when the machine is back, or is "
            "declared dead: kubectl taint nodes m-1 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
        ),
        (pod(1, "Failed", reason="Evicted", message="low on memory"), "ended by its machine: Evicted: low on memory"),
        (pod(1, "Failed", **ended(137)), "killed by signal 9, SIGKILL, and not by us"),
        (pod(1, "Failed", **ended(139)), "exit code 139 (killed by signal 11 (SIGSEGV))"),
        (pod(1, "Running", deleted_s=30), "out-of-service=nodeshutdown:NoExecute"),
    ],
)
def test_a_pods_trouble_is_in_the_line(trouble: dict[str, Any], line: str) -> None:
    found = summary_of(pod(0, "Running"), trouble)
    assert found.state == "RUNNING"
    assert "; node 1: " in found.line
    assert line in found.line


def test_a_draining_pod_is_not_a_lost_one() -> None:
    assert summary_of(pod(0, "Running", deleted_s=-20), pod(1, "Running")).line == "2 nodes run"


def test_a_pod_that_has_ended_and_is_not_yet_removed_is_not_on_a_lost_machine() -> None:
    line = summary_of(pod(0, "Running"), pod(1, "Failed", deleted_s=30, **ended(143))).line
    assert "exit code 143 (drained on request)" in line
    assert "out-of-service" not in line


def test_a_sidecar_is_not_taken_for_the_node() -> None:
    """Two containers in a pod, as an overlay or the cluster's own injection makes them."""
    sidecar = {"name": "proxy", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
    main = {"name": "main", "state": {"terminated": {"exitCode": 1, "reason": "Error", "message": "ValueError: x"}}}
    line = summary_of(pod(0, "Running"), pod(1, "Failed", containerStatuses=[sidecar, main])).line
    assert "exit code 1 (crash): ValueError: x" in line
    assert "exit code 0" not in line


def test_what_threatens_a_queued_job_is_in_the_line_beside_its_trouble() -> None:
    unplaced = pod(1, "Pending", **condition("PodScheduled", "False", "Unschedulable", "0/3 nodes"))
    queued = Queued(warnings=("the queue may evict it",))
    line = summarize(job(queue=True), [pod(0, "Running"), unplaced], queued=queued, now=NOW).line
    assert line == "1 of 2 nodes run; node 1: cannot be placed: 0/3 nodes; the queue may evict it"


def workload(**conditions: tuple[str, str, float]) -> dict[str, Any]:
    """A Workload of two nodes; of each condition its status, its reason and its age in seconds."""
    listed = [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "lastTransitionTime": (NOW - timedelta(seconds=age)).isoformat().replace("+00:00", "Z"),
        }
        for kind, (status, reason, age) in conditions.items()
    ]
    return {"spec": {"podSets": [{"count": 2}]}, "status": {"conditions": listed}}


ADMITTED = ("True", "Admitted", 40.0)


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        (
            {"Admitted": ADMITTED, "PodsReady": ("False", "WaitForStart", 55.0)},
            "the queue admitted this size 40 s ago and waits for all nodes to be ready: after its start timeout (timeout of",
        ),
        (
            {"Admitted": ADMITTED, "PodsReady": ("False", "WaitForRecovery", 12.0)},
            "the queue lost a node 12 s ago and waits for its replacement: after its recovery timeout (recoveryTimeout of",
        ),
        ({"Admitted": ADMITTED, "PodsReady": ("True", "Recovered", 3.0)}, None),
        ({"Admitted": ("False", "NoReservation", 3.0), "PodsReady": ("False", "WaitForStart", 55.0)}, None),
        ({"Admitted": ADMITTED}, None),
    ],
)
def test_the_queues_two_timeouts_are_told_apart_each_with_its_own_clock(
    conditions: dict[str, tuple[str, str, float]], words: str | None
) -> None:
    warnings = read_workloads(job(queue=True), [workload(**conditions)], now=NOW).warnings
    assert len(warnings) == (1 if words else 0)
    assert all(str(words) in warning for warning in warnings)


def test_two_pods_of_one_index_are_named() -> None:
    assert "node 0: 2 pods at once" in summary_of(pod(0, "Running"), pod(0, "Running")).line


def test_a_missing_coordinator_does_not_make_the_job_fail() -> None:
    found = summary_of(pod(0, "Running"), pod(1, "Running"), pod(-1, "Pending", role="coordinator"))
    assert found.state == "RUNNING"
    assert "coordinator: is starting; the nodes train on" in found.line


def test_the_states_of_a_job() -> None:
    assert summary_of(conditions={"Complete": ""}).state == "DONE"
    assert summary_of(conditions={"Failed": "why"}).line == "failed: R: why"
    assert summary_of(pod(0, "Running"), deletionTimestamp="x").state == "DRAINING"
    assert summary_of(pod(0, "Failed"), deletionTimestamp="x").state == "GONE"
    assert summary_of(suspend=True).line == "stopped; resume starts it again from its last checkpoint"
    assert summary_of(pod(0, "Running"), suspend=True).line == "stopping: 1 of 2 nodes are saving their state"
    assert summary_of(suspend=True, queue=True, queue_reason="no quota").line == "waiting in the queue: no quota"
    assert summary_of(suspend=True, queue=True).state == "QUEUED"
    assert summary_of(pod(0, "Running"), pod(1, "Pending"), queue=True, queue_reason="2 more").line == (
        "asked for 2 nodes, have 1, the others wait for quota: 2 more"
    )
    assert summary_of().line == "0 of 2 nodes run"
    assert summary_of(pod(0, "Running"), pod(1, "Succeeded")).line == "1 of 2 nodes run, 1 are done"
    assert summary_of(pod(0, "Pending"), pod(1, "Succeeded")).state == "STARTING"
    assert summary_of(pod(1, "Running")).line == (
        "1 of 2 nodes run; node 0: no pod yet; one that ended is replaced after 10 s, doubled each time"
    )


def test_objects_without_a_status_are_no_reason_to_crash() -> None:
    bare = {"metadata": {"name": "p", "labels": {"zephon/role": "node"}}}
    assert summarize({"metadata": {"name": "j"}, "spec": {"completions": 1}}, [bare], now=NOW).state == "STARTING"


def test_pods_that_were_never_created_are_explained_by_the_jobs_own_event() -> None:
    events = [{"reason": "FailedCreate", "message": f"exceeded quota {n}", "lastTimestamp": f"2026-01-0{n}"} for n in (2, 1)]
    found = summarize(job(), [pod(0, "Running")], warnings=events, now=NOW)
    assert "its pods cannot be created: exceeded quota 2" in found.line
    assert "cannot be created" not in summarize(job(), [pod(0, "Running"), pod(1, "Pending")], warnings=events, now=NOW).line


def test_an_ended_pod_is_no_trouble_once_its_successor_runs_or_its_index_is_gone() -> None:
    old = pod(0, "Failed", **ended(1))
    young = pod(0, "Running")
    young["metadata"]["name"] = "exp1-1-0-bbbbb"
    assert summary_of(old, young, pod(1, "Running")).line == "2 nodes run"
    assert summary_of(pod(0, "Running"), pod(1, "Running"), pod(2, "Failed", **ended(143))).line == "2 nodes run"


REFUSED = """2026-01-01 I zephon.agent: starting
error: /runs/exp1 is not writable for user 1000, group 1000
  why it matters: checkpoints, ledger and logs could not be kept
  fix: give the directory to that user
"""


def test_a_failed_job_has_the_pods_own_three_parts_and_not_only_what_the_controller_says_of_it() -> None:
    failed = {"Failed": "matching FailJob rule at index 0"}
    assert summary_of(pod(0, "Failed", **ended(65, message=REFUSED)), conditions=failed).line == (
        "failed (R): node 0: exit code 65 (configuration or contract error): "
        "/runs/exp1 is not writable for user 1000, group 1000\n"
        "  why it matters: checkpoints, ledger and logs could not be kept\n  fix: give the directory to that user"
    )


def test_what_happened_to_the_victim_comes_before_what_others_saw_of_it() -> None:
    peer = pod(0, "Failed", **ended(1, message="RuntimeError: connection closed by peer"))
    drained = pod(1, "Failed", **ended(75))
    victim = pod(2, "Failed", **ended(137, "OOMKilled"))
    victim["spec"]["containers"] = [{"name": "main", "resources": {"limits": {"memory": "2Gi"}}}]
    three = job(conditions={"Failed": "x"})
    three["spec"]["completions"] = 3
    found = summarize(three, [peer, drained, victim], now=NOW)
    assert found.line.startswith(
        "failed (R): node 2: out of memory: the kernel killed a process of its container at its limit of 2Gi"
    )
    assert [note.partition(":")[0] for note in found.notes] == ["node 2", "node 0", "node 1"]


def test_where_pods_may_not_be_read_the_jobs_own_counts_tell_the_state_and_the_line_says_so() -> None:
    running = job()
    running["status"] = {"active": 2, "ready": 1}
    found = summarize(running, None, unasked=["its pods cannot be read: forbidden"], now=NOW)
    assert (found.state, found.line) == ("RUNNING", "1 of 2 nodes run; its pods cannot be read: forbidden")
    draining = job(suspend=True)
    draining["status"] = {"terminating": 2}
    assert summarize(draining, None, now=NOW).state == "DRAINING"
    assert summarize(job(suspend=True), None, now=NOW).state == "STOPPED"
