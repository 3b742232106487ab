"""The state of a Job and its pods in one line: a pure function of the objects as the API server returned them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from zephon.fastjson import Json
from zephon.launch.backends.kubernetes.causes import Cause, cause_of, condition
from zephon.launch.backends.kubernetes.names import INDEX, ROLE
from zephon.launch.backends.kubernetes.queue import STOPPED_BY_USER, Queued, is_queued
from zephon.run.state import ENDED, State

Phase = Literal["Pending", "Running", "Succeeded", "Failed"]
_PHASES: dict[str, Phase] = {"Running": "Running", "Succeeded": "Succeeded", "Failed": "Failed"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pod:
    """One pod of the Job: a node of the run."""

    index: int
    name: str
    uid: str
    machine: str
    phase: Phase
    cause: Cause | None = None

    @property
    def trouble(self) -> str:
        """Its cause in one sentence with the node's number; empty where nothing is wrong."""
        return f"node {self.index}: {self.cause.text}" if self.cause else ""

    @property
    def ended(self) -> bool:
        return self.phase in ("Succeeded", "Failed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """State of a Job, the one line that explains it, further lines, and its pods by index.

    Args:
        refused: why its pods cannot be created; waits: why its queue lets it wait; empty where neither is so.
    """

    state: State
    line: str
    notes: tuple[str, ...] = ()
    refused: str = ""
    waits: str = ""
    pods: tuple[Pod, ...] = ()
    pods_known: bool = True
    wanted: int = 0
    restarts: int = 0


def summarize(
    job: Json,
    pods: Sequence[Json] | None,
    *,
    queued: Queued | None = None,
    warnings: Sequence[Json] = (),
    unasked: Sequence[str] = (),
    now: datetime | None = None,
) -> Summary:
    """Reads a Job and all pods with its labels.

    Args:
        pods: None where they could not be read: then only the Job's own counts tell its state.
        unasked: what could not be asked, a sentence each.
        warnings: the Job's warning events: why its pods cannot even be created.
        queued: why Kueue lets the job wait and what it may do next, from its newest Workload.
        now: to tell a pod that is draining from one that hangs on a lost machine.
    """
    now, queued = now or datetime.now(UTC), queued or Queued()
    status, spec = job.get("status") or {}, job["spec"]
    wanted = int(spec.get("completions") or 0)
    found = [_node(pod, now) for pod in pods or () if _role(pod) == "node"]
    nodes = tuple(sorted(found, key=lambda node: (node.index, node.name)))
    troubles = _distinct(node.trouble for node in _victims_first(nodes) if _matters(node, nodes, wanted))
    short = pods is not None and not spec.get("suspend") and not _enough(nodes, wanted)
    refused = _refused(warnings) if short else []
    missing = _missing(nodes, wanted) if short and not refused else []
    notes = (*troubles, *refused, *missing, *_doubles(nodes), *_coordinator(pods or (), now), *unasked)
    counts = _of_pods(nodes) if pods is not None else _of_job(status)
    state, line = (
        _ended(job, troubles, counts)
        or _suspended(job, counts, wanted, queued)
        or _active(nodes, counts, wanted, queued.reason)
    )
    if state not in ENDED:
        line = "; ".join([line, *notes[:1], *queued.warnings])
    return Summary(
        state=state,
        line=line,
        notes=(*notes, *queued.warnings),
        refused=refused[0] if refused else "",
        waits=queued.reason if queued.reason and state == "QUEUED" else "",
        pods=nodes,
        pods_known=pods is not None,
        wanted=wanted,
        restarts=int(status.get("failed") or 0),
    )


def _victims_first(nodes: Sequence[Pod]) -> list[Pod]:
    """Those with a cause: what happened to a pod from outside before what others saw of it; the first to end first."""
    caused = [(node.cause.weight, node.cause.time, node.index, node) for node in nodes if node.cause]
    return [node for *_, node in sorted(caused, key=lambda item: item[:3])]


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


def _ended(job: Json, troubles: Sequence[str], counts: _Counts) -> tuple[State, str] | None:
    """A Job that the cluster has finished with, or is deleting: a failed one with its first victim's cause."""
    conditions = {c["type"]: c for c in conditions_of(job) if c.get("status") == "True"}
    if "Complete" in conditions:
        return "DONE", "done"
    if failed := conditions.get("Failed") or conditions.get("FailureTarget"):
        reason, message = failed.get("reason", ""), failed.get("message", "")
        return "FAILED", f"failed ({reason}): {troubles[0]}" if troubles else f"failed: {reason}: {message}"
    if job["metadata"].get("deletionTimestamp"):
        left = f"its Job is being deleted, {counts.alive} pods left"
        return ("DRAINING", left) if counts.alive else ("GONE", left)
    return None


def _suspended(job: Json, counts: _Counts, wanted: int, queued: Queued) -> tuple[State, str] | None:
    """A Job that was stopped by its user, or is kept waiting by its queue."""
    if not job["spec"].get("suspend"):
        return None
    if counts.alive:
        return "DRAINING", f"stopping: {counts.running} of {wanted} nodes are saving their state"
    if queued.given_up:
        return "FAILED", f"the queue has given it up: {queued.given_up}; resume starts a new attempt"
    if is_queued(job) and queued.reason != STOPPED_BY_USER:
        return "QUEUED", f"waiting in the queue: {queued.reason or 'Kueue has not looked at it yet'}"
    return "STOPPED", "stopped; resume starts it again from its last checkpoint"


def _active(nodes: Sequence[Pod], counts: _Counts, wanted: int, queue_reason: str | None) -> tuple[State, str]:
    """A Job that may have pods: how many of them run."""
    running = counts.running
    if queue_reason and running:
        return "RUNNING", f"asked for {wanted} nodes, have {running}, the others wait for quota: {queue_reason}"
    if running >= wanted:
        return "RUNNING", f"{running} nodes run"
    done = len({node.index for node in nodes if node.phase == "Succeeded"})
    also = f", {done} are done" if done else ""
    return ("RUNNING" if running else "STARTING"), f"{running} of {wanted} nodes run{also}"


class _Counts(NamedTuple):
    """How many pods run, and how many are not over."""

    running: int
    alive: int


def _of_pods(nodes: Sequence[Pod]) -> _Counts:
    return _Counts(sum(node.phase == "Running" for node in nodes), sum(not node.ended for node in nodes))


def _of_job(status: Json) -> _Counts:
    """The same by the Job's own counts, where its pods may not be read: a running pod without a probe is ready."""
    active, ending = int(status.get("active") or 0), int(status.get("terminating") or 0)
    return _Counts(int(status.get("ready") or 0), active + ending)


def _node(pod: Json, now: datetime) -> Pod:
    metadata, status = pod["metadata"], pod.get("status") or {}
    machine = (pod.get("spec") or {}).get("nodeName") or ""
    phase = _PHASES.get(status.get("phase", ""), "Pending")
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    index = int(labels.get(INDEX, annotations.get(INDEX, -1)))
    return Pod(
        index=index,
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        machine=machine,
        phase=phase,
        cause=cause_of(pod, now),
    )


def has_ended(job: Json) -> bool:
    """Whether the cluster is done with a Job, for better or worse."""
    return any(c["status"] == "True" and c["type"] in ("Complete", "Failed") for c in conditions_of(job))


def conditions_of(job: Json) -> list[Json]:
    """The Job's conditions; none where it has no status yet."""
    return (job.get("status") or {}).get("conditions") or []


def _doubles(nodes: Sequence[Pod]) -> list[str]:
    alive = Counter(node.index for node in nodes if not node.ended)
    return [
        f"node {index}: {count} pods at once, the older one is being fenced off" for index, count in alive.items() if count > 1
    ]


def _coordinator(pods: Sequence[Json], now: datetime) -> list[str]:
    coordinators = [pod for pod in pods if _role(pod) == "coordinator" and not pod["metadata"].get("deletionTimestamp")]
    ready = any(condition(pod.get("status") or {}, "Ready", "True") for pod in coordinators)
    if not coordinators or ready:
        return []
    trouble = next(filter(None, (cause.text if (cause := cause_of(pod, now)) else "" for pod in coordinators)), "is starting")
    return [f"coordinator: {trouble}; the nodes train on, but cannot re-form until it is back"]


def _role(pod: Json) -> str:
    return str((pod["metadata"].get("labels") or {}).get(ROLE, ""))


def _distinct(lines: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(lines))
