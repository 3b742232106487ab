"""Kueue: whether a queue can take a job, why a job waits, and how a queued job is stopped.

Kueue owns ``spec.suspend`` of a queued Job and keeps its reasons on the Job's Workloads, of which the newest unfinished one
counts. Where the user may not read Workloads the job still runs, and its status says that the reason is missing.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime

from zephon.errors import ConfigError
from zephon.fastjson import Json
from zephon.launch.backends.kubernetes.client import Cluster
from zephon.launch.backends.kubernetes.errors import Forbidden, NotFound
from zephon.launch.backends.kubernetes.options import KubernetesOptions

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
ELASTIC_GATE = "kueue.x-k8s.io/elastic-job"
# A Workload follows its Job within a second; without one after this time Kueue has refused it silently.
WORKLOAD_S = 10.0
STOPPED_BY_USER = "stopped by its user"


def is_queued(job: Json) -> bool:
    return QUEUE_LABEL in (job["metadata"].get("labels") or {})


def is_elastic(job: Json) -> bool:
    """Whether this cluster's Kueue scales the Job in place: then, and only then, it has put its gate into the pod template."""
    gates = job["spec"]["template"]["spec"].get("schedulingGates") or []
    return any(gate.get("name") == ELASTIC_GATE for gate in gates)


def check_queue(cluster: Cluster, options: KubernetesOptions) -> None:
    """Refuses a queue or priority class that would let the job wait for ever; does nothing where reading is not allowed.

    Raises:
        ConfigError: no Kueue, no such queue, a queue that is on hold, or no such priority class.
    """
    if options.queue is None:
        return
    if cluster.kueue_version() is None:
        raise ConfigError(
            f"queue={options.queue!r}, but this cluster has no Kueue",
            follows="the job would be created suspended, and nothing would ever start it",
            remedy="leave queue out, or have Kueue installed (k8s/components/kueue makes a queue)",
        )
    # Who may submit need not be allowed to read queues; Kueue itself will say it on the Workload.
    with contextlib.suppress(Forbidden):
        _check_local_queue(cluster, options)
    if options.queue_priority is not None:
        _check_priority(cluster, options.queue_priority)


def _check_local_queue(cluster: Cluster, options: KubernetesOptions) -> None:
    queues = {item["metadata"]["name"]: item for item in cluster.find("LocalQueue", options.namespace)}
    assert options.queue is not None
    if options.queue not in queues:
        raise ConfigError(
            f"queue={options.queue!r} is not in namespace {options.namespace}",
            follows="the job would wait for ever: Inadmissible",
            remedy=f"use one of {', '.join(sorted(queues))}" if queues else "have a LocalQueue made in that namespace",
        )
    for condition in (queues[options.queue].get("status") or {}).get("conditions") or []:
        if condition["type"] == "Active" and condition["status"] == "False":
            raise ConfigError(
                f"queue={options.queue!r} is not active: {condition.get('reason', '')}: {condition.get('message', '')}",
                follows="the job would wait until somebody activates the queue",
                remedy="ask the queue's administrator, or use another one",
            )


def _check_priority(cluster: Cluster, name: str) -> None:
    try:
        cluster.get("WorkloadPriorityClass", "", name)
    except NotFound:
        raise ConfigError(
            f"queue_priority={name!r} is no WorkloadPriorityClass of this cluster",
            follows="Kueue would leave the job suspended for ever and say so nowhere but in its own log",
            remedy="kubectl get workloadpriorityclasses lists them",
        ) from None
    except Forbidden:
        pass


def workloads_of(cluster: Cluster, job: Json) -> list[Json]:
    """The Job's Workloads that are not finished, oldest first."""
    return [item for item in _all_workloads(cluster, job) if not _finished(item)]


def _all_workloads(cluster: Cluster, job: Json) -> list[Json]:
    """All of the Job's Workloads, oldest first; a scaled Job has one for each size."""
    uid, namespace = job["metadata"]["uid"], job["metadata"]["namespace"]
    workloads = cluster.find("Workload", namespace, labels=f"kueue.x-k8s.io/job-uid={uid}")
    return sorted(workloads, key=lambda item: (item["metadata"]["creationTimestamp"], item["metadata"]["name"]))


def _finished(workload: Json) -> Json | None:
    found = _find(workload, "Finished")
    return found if found and found.get("status") == "True" else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Queued:
    """What Kueue says of a job: why it, or its growth, waits (None: nothing waits), and what threatens it while it runs.

    Args:
        given_up: why Kueue will never start the job again; empty where it may.
    """

    reason: str | None = None
    given_up: str = ""
    warnings: tuple[str, ...] = ()


def queue_status(cluster: Cluster, job: Json, *, now: datetime | None = None) -> Queued:
    """Reads the Job's Workloads; empty for a job without a queue."""
    if not is_queued(job):
        return Queued()
    now = now or datetime.now(UTC)
    try:
        workloads = _all_workloads(cluster, job)
    except Forbidden:
        return Queued(reason="the reason is on its Workload, which you may not list" if job["spec"].get("suspend") else None)
    return read_workloads(job, workloads, now=now)


def read_workloads(job: Json, workloads: Sequence[Json], *, now: datetime) -> Queued:
    """What a queued job's Workloads (oldest first) say of it at the time ``now``."""
    unfinished = [item for item in workloads if not _finished(item)]
    if not unfinished:
        return _without_workload(job, workloads, now)
    newest = unfinished[-1]
    if newest.get("spec", {}).get("active") is False:
        return Queued(reason=STOPPED_BY_USER)
    reserved = _find(newest, "QuotaReserved")
    if reserved and reserved["status"] == "False":
        return Queued(reason=f"{reserved.get('reason', '')}: {reserved.get('message', '')}")
    return Queued(warnings=(*_unready(newest, now), *_stale(newest, job)))


def _unready(workload: Json, now: datetime) -> list[str]:
    """Where Kueue waits for pods (``waitForPodsReady``), it evicts a job whose pods are late, the running ones too.

    It has two clocks: ``timeout`` runs from the admission until all pods have been ready once, ``recoveryTimeout`` from the
    loss of a ready pod until all are ready again.
    """
    ready, admitted = _find(workload, "PodsReady"), _find(workload, "Admitted")
    if not ready or ready["status"] == "True" or not admitted or admitted["status"] != "True":
        return []
    if ready.get("reason") == "WaitForRecovery":
        lost = _age(ready, now)
        waits, clock = f"lost a node {lost:.0f} s ago and waits for its replacement", "recovery timeout (recoveryTimeout"
    else:
        waiting = _age(admitted, now)
        waits, clock = f"admitted this size {waiting:.0f} s ago and waits for all nodes to be ready", "start timeout (timeout"
    return [
        f"the queue {waits}: after its {clock} of waitForPodsReady) it stops all nodes and queues the job again; "
        "they save their state and go on later"
    ]


def _stale(workload: Json, job: Json) -> list[str]:
    """A size that Kueue has not taken over: it does so within a second, or never."""
    counted = sum(int(pods.get("count", 1)) for pods in workload.get("spec", {}).get("podSets") or [])
    wanted = int(job["spec"].get("completions") or 0)
    if counted == wanted or job["spec"].get("suspend"):
        return []
    return [
        f"the queue still counts {counted} nodes and the job has {wanted}: if this stays, it has not accepted the rescale; "
        f"rescale to {counted} takes it back"
    ]


def _without_workload(job: Json, finished: Sequence[Json], now: datetime) -> Queued:
    """A job for which Kueue has no Workload that could start: it has made none yet, refused silently, or given the job up.

    Kueue 0.17 gives up a job that had grown and was preempted: the slices of both sizes contradict each other (FailedToStart).
    """
    if not job["spec"].get("suspend"):
        return Queued()
    if finished:
        ends = sorted((end for item in finished if (end := _finished(item))), key=lambda end: str(end["lastTransitionTime"]))
        return Queued(given_up=f"{ends[-1].get('reason', '')}: {ends[-1].get('message', '')}")
    if (now - _time(job["metadata"]["creationTimestamp"])).total_seconds() < WORKLOAD_S:
        return Queued()
    return Queued(reason="Kueue made no Workload for it: does its priority class exist, and does Kueue run?")


def set_active(cluster: Cluster, job: Json, *, active: bool) -> None:
    """Stops or resumes a queued job by its Workload's own switch: a suspension of the Job itself Kueue takes back at once.

    Raises:
        Forbidden: the user may not change Workloads.
    """
    namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
    for workload in workloads_of(cluster, job):
        try:
            cluster.patch("Workload", namespace, workload["metadata"]["name"], {"spec": {"active": active}})
        except Forbidden as error:
            raise Forbidden(
                f"{'stop' if not active else 'resume'} {namespace}/{name}: {error.what}",
                follows="Kueue owns a queued job's suspension: suspending the Job itself would only restart all its pods",
                remedy="have patch on workloads.kueue.x-k8s.io granted (k8s/components/kueue/rbac.yaml), or delete the job: "
                "its run goes on from the last checkpoint with resume",
            ) from None


def _find(item: Json, kind: str) -> Json | None:
    return next((c for c in (item.get("status") or {}).get("conditions") or [] if c["type"] == kind), None)


def _age(condition: Json, now: datetime) -> float:
    """Seconds since the condition changed."""
    return (now - _time(condition["lastTransitionTime"])).total_seconds()


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
