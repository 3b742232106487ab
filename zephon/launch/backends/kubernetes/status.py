"""The state of a Job and its pods in one line: a pure function of the objects as the API server returned them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Literal

from zephon.exits import DRAINS, MEANING, Exit
from zephon.fastjson import Json
from zephon.launch.backends.kubernetes.names import INDEX, ROLE
from zephon.launch.backends.kubernetes.queue import STOPPED_BY_USER, Queued, is_queued
from zephon.run.state import ENDED, State

Phase = Literal["Pending", "Running", "Succeeded", "Failed"]
_PHASES: dict[str, Phase] = {"Running": "Running", "Succeeded": "Succeeded", "Failed": "Failed"}

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
class Pod:
    """One pod of the Job: a node of the run."""

    index: int
    name: str
    uid: str
    machine: str
    phase: Phase
    trouble: str = ""

    @property
    def ended(self) -> bool:
        return self.phase in ("Succeeded", "Failed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """State of a Job, the one line that explains it, further lines, and its pods by index."""

    state: State
    line: str
    notes: tuple[str, ...] = ()
    pods: tuple[Pod, ...] = ()
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
    nodes = tuple(sorted((_node(pod, now) for pod in pods if _role(pod) == "node"), key=lambda node: (node.index, node.name)))
    troubles = _distinct(node.trouble for node in nodes if node.trouble and _matters(node, nodes, wanted))
    short = not spec.get("suspend") and not _enough(nodes, wanted)
    refused = (_refused(warnings) or _missing(nodes, wanted)) if short else []
    notes = (*troubles, *refused, *_doubles(nodes), *_coordinator(pods, now))
    state, line = _ended(job, nodes) or _suspended(job, nodes, wanted, queued.reason) or _active(nodes, wanted, queued.reason)
    if state not in ENDED:
        line = "; ".join([line, *notes[:1], *queued.warnings])
    return Summary(
        state=state,
        line=line,
        notes=(*notes, *queued.warnings),
        pods=nodes,
        wanted=wanted,
        restarts=int(status.get("failed") or 0),
    )


def _enough(nodes: Sequence[Pod], wanted: int) -> bool:
    return sum(node.phase != "Failed" for node in nodes) >= wanted


def _refused(warnings: Sequence[Json]) -> list[str]:
    """The newest reason for which the Job controller could not create a pod: a quota, an admission check."""
    failed = [event for event in warnings if event.get("reason") == "FailedCreate"]
    failed.sort(key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")
    return [f"its pods cannot be created: {failed[-1].get('message', '')}"] if failed else []


def _missing(nodes: Sequence[Pod], wanted: int) -> list[str]:
    """Indexes without any pod, once the Job has made its first ones."""
    there = {node.index for node in nodes}
    missing = [str(index) for index in range(wanted) if index not in there]
    if not nodes or not missing:
        return []
    return [f"node {', '.join(missing)}: no pod yet; one that ended is replaced after 10 s, doubled each time"]


def _matters(node: Pod, nodes: Sequence[Pod], wanted: int) -> bool:
    """Whether a trouble is still one: not of an index that was scaled away, nor of a pod whose successor is there."""
    followed = any(other.index == node.index and other.name != node.name and other.phase != "Failed" for other in nodes)
    return node.index < wanted and not (node.ended and followed)


def _ended(job: Json, nodes: Sequence[Pod]) -> tuple[State, str] | None:
    """A Job that the cluster has finished with, or is deleting."""
    conditions = {c["type"]: c for c in conditions_of(job) if c.get("status") == "True"}
    if "Complete" in conditions:
        return "DONE", "done"
    if failed := conditions.get("Failed") or conditions.get("FailureTarget"):
        return "FAILED", f"failed: {failed.get('reason', '')}: {failed.get('message', '')}"
    if job["metadata"].get("deletionTimestamp"):
        return "STOPPED", f"being deleted, {len(nodes)} pods left"
    return None


def _suspended(job: Json, nodes: Sequence[Pod], wanted: int, queue_reason: str | None) -> tuple[State, str] | None:
    """A Job that was stopped by its user, or is kept waiting by its queue."""
    if not job["spec"].get("suspend"):
        return None
    if any(not node.ended for node in nodes):
        return "DRAINING", f"stopping: {_running(nodes)} of {wanted} nodes are saving their state"
    if is_queued(job) and queue_reason != STOPPED_BY_USER:
        return "QUEUED", f"waiting in the queue: {queue_reason or 'Kueue has not looked at it yet'}"
    return "STOPPED", "stopped; resume starts it again from its last checkpoint"


def _active(nodes: Sequence[Pod], wanted: int, queue_reason: str | None) -> tuple[State, str]:
    """A Job that may have pods: how many of them run."""
    running = _running(nodes)
    if queue_reason and running:
        return "RUNNING", f"asked for {wanted} nodes, have {running}, the others wait for quota: {queue_reason}"
    if running >= wanted:
        return "RUNNING", f"{running} nodes run"
    done = len({node.index for node in nodes if node.phase == "Succeeded"})
    also = f", {done} are done" if done else ""
    return ("RUNNING" if running else "STARTING"), f"{running} of {wanted} nodes run{also}"


def _running(nodes: Sequence[Pod]) -> int:
    return sum(node.phase == "Running" for node in nodes)


def _node(pod: Json, now: datetime) -> Pod:
    metadata, status = pod["metadata"], pod.get("status") or {}
    machine = (pod.get("spec") or {}).get("nodeName") or ""
    phase = _PHASES.get(status.get("phase", ""), "Pending")
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    index = int(labels.get(INDEX, annotations.get(INDEX, -1)))
    over = phase in ("Succeeded", "Failed")  # its machine has answered: what is left is the controllers' to do
    trouble = ("" if over else _hanging(pod, machine, now)) or _trouble(status)
    return Pod(
        index=index,
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        machine=machine,
        phase=phase,
        trouble=f"node {index}: {trouble}" if trouble else "",
    )


def _trouble(status: Json) -> str:
    """What keeps a pod from running, in the order in which it can happen; empty where nothing does."""
    return _unplaced(status) or _disrupted(status) or _waiting(status) or _exited(status)


def _unplaced(status: Json) -> str:
    placed = _condition(status, "PodScheduled", "False")
    if placed is None:
        return ""
    if placed.get("reason") == "SchedulingGated":
        return "waits for quota (Kueue)"
    return f"cannot be placed: {placed.get('message', placed.get('reason', ''))}"


def _disrupted(status: Json) -> str:
    target = _condition(status, "DisruptionTarget", "True")
    if target is None or status.get("phase") not in ("Failed", "Running"):
        return ""
    return f"taken away by the cluster: {target.get('reason', '')}: {target.get('message', '')}"


def _waiting(status: Json) -> str:
    """Any container's, a sidecar's too: the pod starts with all of them or not at all."""
    for container in status.get("containerStatuses") or []:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _BAD_WAITING:
            return f"{_BAD_WAITING[waiting['reason']]}: {waiting.get('message', waiting['reason'])}"
    return ""


def _exited(status: Json) -> str:
    if status.get("phase") != "Failed":
        return ""
    ends = [(container.get("state") or {}).get("terminated") for container in main_containers(status)]
    end = next(filter(None, ends), None)
    return _exit_text(end) if end else f"failed: {status.get('reason', '')} {status.get('message', '')}".strip()


def _condition(status: Json, kind: str, value: str) -> Json | None:
    conditions: list[Json] = status.get("conditions") or []
    return next((condition for condition in conditions if (condition["type"], condition["status"]) == (kind, value)), None)


def conditions_of(job: Json) -> list[Json]:
    """The Job's conditions; none where it has no status yet."""
    return (job.get("status") or {}).get("conditions") or []


def main_containers(status: Json) -> list[Json]:
    """The statuses of a pod without those of sidecars, which an overlay or the cluster may have added."""
    return [container for container in status.get("containerStatuses") or [] if container.get("name", "main") == "main"]


def _exit_text(ended: Json) -> str:
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


def _doubles(nodes: Sequence[Pod]) -> list[str]:
    alive = Counter(node.index for node in nodes if not node.ended)
    return [
        f"node {index}: {count} pods at once, the older one is being fenced off" for index, count in alive.items() if count > 1
    ]


def _coordinator(pods: Sequence[Json], now: datetime) -> list[str]:
    coordinators = [pod for pod in pods if _role(pod) == "coordinator"]
    ready = any(_condition(pod.get("status") or {}, "Ready", "True") for pod in coordinators)
    if not coordinators or ready:
        return []
    trouble = next(
        filter(None, (_hanging(pod, "", now) or _trouble(pod.get("status") or {}) for pod in coordinators)), "is starting"
    )
    return [f"coordinator: {trouble}; the nodes train on, but cannot re-form until it is back"]


def _role(pod: Json) -> str:
    return str((pod["metadata"].get("labels") or {}).get(ROLE, ""))


def _distinct(lines: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(lines))
