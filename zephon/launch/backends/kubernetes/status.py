"""What a Job and its pods say, in one line: a pure function of the objects as the API server returned them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from torchx.specs import AppState

from zephon.exits import DRAINS, MEANING, Exit
from zephon.launch.backends.kubernetes.names import INDEX, ROLE
from zephon.launch.backends.kubernetes.queue import STOPPED_BY_USER, Queued, is_queued

Json = dict[str, Any]

_BAD_WAITING = {
    "ErrImagePull": "the image cannot be pulled",
    "ImagePullBackOff": "the image cannot be pulled",
    "InvalidImageName": "the image's name is not valid",
    "ErrImageNeverPull": "the image is not on the machine",
    "CreateContainerConfigError": "the container cannot be configured",
    "CreateContainerError": "the container cannot be created",
    "RunContainerError": "the container cannot be started",
    "CrashLoopBackOff": "it crashes again and again",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Node:
    """One pod of the Job as the user thinks of it."""

    index: int
    pod: str
    uid: str
    machine: str
    state: AppState
    trouble: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """State of a Job, the one line that explains it, further lines, and its nodes by index."""

    state: AppState
    line: str
    notes: tuple[str, ...] = ()
    nodes: tuple[Node, ...] = ()
    wanted: int = 0
    restarts: int = 0


def summarize(
    job: Json,
    pods: Sequence[Json],
    *,
    queued: Queued | None = None,
    warnings: Sequence[Json] = (),
    now: datetime | None = None,
) -> Summary:
    """Reads a Job and all pods with its labels.

    Args:
        warnings: the Job's warning events: why its pods cannot even be created.
        queued: why Kueue lets the job wait and what it may do next, from its newest Workload.
        now: to tell a pod that is draining from one that hangs on a lost machine.
    """
    now, queued = now or datetime.now(UTC), queued or Queued()
    status, spec = job.get("status") or {}, job["spec"]
    wanted = int(spec.get("completions") or 0)
    nodes = tuple(sorted((_node(pod, now) for pod in pods if _role(pod) == "node"), key=lambda node: (node.index, node.pod)))
    troubles = _distinct(node.trouble for node in nodes if node.trouble and _matters(node, nodes, wanted))
    short = not spec.get("suspend") and not _enough(nodes, wanted)
    refused = (_refused(warnings) or _missing(nodes, wanted)) if short else []
    notes = (*troubles, *refused, *_doubles(nodes), *_coordinator(pods, now))
    state, line = _overall(job, nodes, wanted, queued.reason)
    if state in (AppState.RUNNING, AppState.PENDING):
        line = "; ".join([line, *notes[:1], *queued.warnings])
    return Summary(
        state=state,
        line=line,
        notes=(*notes, *queued.warnings),
        nodes=nodes,
        wanted=wanted,
        restarts=int(status.get("failed") or 0),
    )


def _enough(nodes: Sequence[Node], wanted: int) -> bool:
    return sum(node.state in (AppState.RUNNING, AppState.PENDING, AppState.SUCCEEDED) for node in nodes) >= wanted


def _refused(warnings: Sequence[Json]) -> list[str]:
    """The newest reason for which the Job controller could not create a pod: a quota, an admission check."""
    failed = [event for event in warnings if event.get("reason") == "FailedCreate"]
    failed.sort(key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")
    return [f"its pods cannot be created: {failed[-1].get('message', '')}"] if failed else []


def _missing(nodes: Sequence[Node], wanted: int) -> list[str]:
    """Indexes without any pod, once the Job has made its first ones."""
    there = {node.index for node in nodes}
    missing = [str(index) for index in range(wanted) if index not in there]
    if not nodes or not missing:
        return []
    return [f"node {', '.join(missing)}: no pod yet; one that ended is replaced after 10 s, doubled each time"]


def _matters(node: Node, nodes: Sequence[Node], wanted: int) -> bool:
    """Whether a trouble is still one: not of an index that was scaled away, nor of a pod whose successor is there."""
    over = node.state in (AppState.FAILED, AppState.SUCCEEDED)
    followed = any(other.index == node.index and other.pod != node.pod and other.state != AppState.FAILED for other in nodes)
    return node.index < wanted and not (over and followed)


def _overall(job: Json, nodes: Sequence[Node], wanted: int, queue_reason: str | None) -> tuple[AppState, str]:
    conditions = {c["type"]: c for c in (job.get("status") or {}).get("conditions") or [] if c.get("status") == "True"}
    running = sum(node.state == AppState.RUNNING for node in nodes)
    if "Complete" in conditions:
        return AppState.SUCCEEDED, "done"
    if failed := conditions.get("Failed") or conditions.get("FailureTarget"):
        return AppState.FAILED, f"failed: {failed.get('reason', '')}: {failed.get('message', '')}"
    if job["metadata"].get("deletionTimestamp"):
        return AppState.CANCELLED, f"being deleted, {len(nodes)} pods left"
    if job["spec"].get("suspend"):
        if nodes and any(node.state in (AppState.RUNNING, AppState.PENDING) for node in nodes):
            return AppState.RUNNING, f"stopping: {running} of {wanted} nodes are saving their state"
        if is_queued(job) and queue_reason != STOPPED_BY_USER:
            return AppState.PENDING, f"waiting in the queue: {queue_reason or 'Kueue has not looked at it yet'}"
        return AppState.CANCELLED, "stopped; resume starts it again from its last checkpoint"
    if queue_reason and running:
        return AppState.RUNNING, f"asked for {wanted} nodes, have {running}, the rest waits for quota: {queue_reason}"
    if running >= wanted:
        return AppState.RUNNING, f"{running} nodes run"
    done = len({node.index for node in nodes if node.state == AppState.SUCCEEDED})
    also = f", {done} are done" if done else ""
    return (AppState.RUNNING if running else AppState.PENDING), f"{running} of {wanted} nodes run{also}"


def _node(pod: Json, now: datetime) -> Node:
    metadata, status = pod["metadata"], pod.get("status") or {}
    machine = (pod.get("spec") or {}).get("nodeName") or ""
    state = {
        "Running": AppState.RUNNING,
        "Succeeded": AppState.SUCCEEDED,
        "Failed": AppState.FAILED,
        "Pending": AppState.PENDING,
    }.get(status.get("phase", ""), AppState.PENDING)
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    index = int(labels.get(INDEX, annotations.get(INDEX, -1)))
    over = state in (AppState.FAILED, AppState.SUCCEEDED)  # its machine has answered: what is left is the controllers' to do
    trouble = ("" if over else _hanging(pod, machine, now)) or _pod_trouble(status)
    return Node(
        index=index,
        pod=metadata["name"],
        uid=metadata.get("uid", ""),
        machine=machine,
        state=state,
        trouble=f"node {index}: {trouble}" if trouble else "",
    )


def _pod_trouble(status: Mapping[str, Any]) -> str:
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            if condition.get("reason") == "SchedulingGated":
                return "waits for quota (Kueue)"
            return f"cannot be placed: {condition.get('message', condition.get('reason', ''))}"
    disrupted = next(
        (c for c in status.get("conditions") or [] if c["type"] == "DisruptionTarget" and c["status"] == "True"), None
    )
    if disrupted and status.get("phase") in ("Failed", "Running"):
        return f"taken away by the cluster: {disrupted.get('reason', '')}: {disrupted.get('message', '')}"
    for container in status.get("containerStatuses") or []:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _BAD_WAITING:
            return f"{_BAD_WAITING[waiting['reason']]}: {waiting.get('message', waiting['reason'])}"
    ended = next((found for each in main_containers(status) if (found := (each.get("state") or {}).get("terminated"))), None)
    if ended and status.get("phase") == "Failed":
        return _ended(ended)
    if status.get("phase") == "Failed":
        return f"failed: {status.get('reason', '')} {status.get('message', '')}".strip()
    return ""


def main_containers(status: Mapping[str, Any]) -> list[Json]:
    """The statuses of a pod without those of sidecars, which an overlay or the cluster may have added."""
    return [each for each in status.get("containerStatuses") or [] if each.get("name", "main") == "main"]


def _ended(ended: Mapping[str, Any]) -> str:
    code = ended.get("exitCode")
    if ended.get("reason") == "OOMKilled" or code == Exit.KILLED:
        return (
            f"killed for memory or by force (exit code {code}, {ended.get('reason', '')}): ask for more memory_mb if OOMKilled"
        )
    last = (ended.get("message") or "").strip().splitlines()[-1:] if code not in DRAINS else []
    return f"exit code {code} ({MEANING.get(int(code or 0), 'crash')})" + (f": {last[0]}" if last else "")


def _hanging(pod: Json, machine: str, now: datetime) -> str:
    """A pod whose deletion its machine never confirms: it blocks its own replacement."""
    asked = pod["metadata"].get("deletionTimestamp")
    if not asked or not machine:
        return ""
    late = (now - datetime.fromisoformat(asked.replace("Z", "+00:00"))).total_seconds()
    if late < 5:  # deletionTimestamp already includes the grace period
        return ""
    taint = f"kubectl taint nodes {machine} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    return (
        f"its machine {machine} does not answer ({late:.0f} s past the grace period), and the pod is replaced only when the "
        f"machine is back, or is declared dead: {taint}"
    )


def _doubles(nodes: Sequence[Node]) -> list[str]:
    alive = Counter(node.index for node in nodes if node.state in (AppState.RUNNING, AppState.PENDING))
    return [
        f"node {index}: {count} pods at once, the older one is being fenced off" for index, count in alive.items() if count > 1
    ]


def _coordinator(pods: Sequence[Json], now: datetime) -> list[str]:
    found = [pod for pod in pods if _role(pod) == "coordinator"]
    ready = any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for pod in found
        for condition in (pod.get("status") or {}).get("conditions") or []
    )
    if not found or ready:
        return []
    trouble = next(
        filter(None, (_hanging(pod, "", now) or _pod_trouble(pod.get("status") or {}) for pod in found)), "is starting"
    )
    return [f"coordinator: {trouble}; the nodes train on, but cannot re-form until it is back"]


def _role(pod: Json) -> str:
    return str((pod["metadata"].get("labels") or {}).get(ROLE, ""))


def _distinct(lines: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(lines))
