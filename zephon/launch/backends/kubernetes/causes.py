"""Why a pod does not run, or how it ended: in one sentence, with what to do, from what the API server has of it.

A loss has victims and witnesses: the pod whose machine is gone, that was evicted or ran out of memory, and those that only lost
their peer, drained or were ended with the job. ``Cause.weight`` puts victims first.
"""

from __future__ import annotations

import dataclasses
import re
import signal
from datetime import datetime

from zephon.exits import DRAINS, MEANING, Exit
from zephon.fastjson import Json

_LATE_S = 5.0  # deletionTimestamp already includes the grace period
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
_DISRUPTED = {
    "EvictionByEvictionAPI": "evicted (kubectl drain, an autoscaler or another caller of the eviction API)",
    "PreemptionByScheduler": "preempted by a pod of higher priority",
    "TerminationByKubelet": "ended by its machine, which shuts down or lacks a resource",
    "DeletionByPodGC": "removed with its machine",
}
_ERROR = re.compile(r"^(error: |\[rank \d+\] [A-Z]\w*: |[A-Z]\w*(Error|Died|Failed|Mismatch): )")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cause:
    """What is wrong with a pod.

    Args:
        text: the sentence; a worker's own error keeps its lines.
        weight: 0 for what happened to it from outside, 1 for its own crash, 2 for what keeps it from starting, 3 for a drain.
        time: when it ended, as the API server writes it; empty where it has not.
        lasting: it stays true when the pod is gone; False for what may pass, and for an ordinary drain.
    """

    text: str
    weight: int
    time: str = ""
    lasting: bool = True


def cause_of(pod: Json, now: datetime) -> Cause | None:
    """The pod's cause; None where nothing is wrong."""
    status = pod.get("status") or {}
    if status.get("phase") not in ("Succeeded", "Failed") and (hanging := hanging_line(pod, now)):
        return Cause(text=hanging, weight=0)
    return (
        _unplaced(status) or _killed_for_memory(pod, status) or _disrupted(pod, status) or _waiting(status) or _exited(status)
    )


def _unplaced(status: Json) -> Cause | None:
    placed = condition(status, "PodScheduled", "False")
    if placed is None:
        return None
    if placed.get("reason") == "SchedulingGated":
        return Cause(text="waits for quota (Kueue)", weight=2, lasting=False)
    return Cause(text=f"cannot be placed: {placed.get('message', placed.get('reason', ''))}", weight=2, lasting=False)


def _killed_for_memory(pod: Json, status: Json) -> Cause | None:
    end = _end(status)
    if end is None or end.get("reason") != "OOMKilled":
        return None
    containers: list[Json] = (pod.get("spec") or {}).get("containers") or []
    limits = [((c.get("resources") or {}).get("limits") or {}).get("memory") for c in containers if c.get("name") == "main"]
    limit = next(filter(None, limits), None)
    text = (
        f"out of memory: the kernel killed a process of its container at its limit{f' of {limit}' if limit else ''} "
        f"(OOMKilled, exit code {end.get('exitCode')}): ask for more memory_mb, or hold less in memory"
    )
    return Cause(text=text, weight=0, time=str(end.get("finishedAt") or ""))


def _disrupted(pod: Json, status: Json) -> Cause | None:
    target = condition(status, "DisruptionTarget", "True")
    if target is None or status.get("phase") not in ("Failed", "Running", "Pending"):
        if status.get("phase") == "Failed" and status.get("reason") and _end(status) is None:
            return Cause(text=f"ended by its machine: {status['reason']}: {status.get('message', '')}", weight=0)
        return None
    reason, message = str(target.get("reason", "")), target.get("message", "")
    if reason == "DeletionByTaintManager" and status.get("phase") != "Failed":
        machine = (pod.get("spec") or {}).get("nodeName") or ""
        return Cause(text=f"its machine {machine} is lost, or was emptied by a taint; {_declare_dead(machine)}", weight=0)
    more = f" ({status['message']})" if status.get("message") else ""
    return Cause(text=f"{_DISRUPTED.get(reason, 'taken away by the cluster')}: {reason}: {message}{more}", weight=0)


def _waiting(status: Json) -> Cause | None:
    """Any container's, a sidecar's too: the pod starts with all of them or not at all."""
    for container in status.get("containerStatuses") or []:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _BAD_WAITING:
            return Cause(text=f"{_BAD_WAITING[waiting['reason']]}: {waiting.get('message', waiting['reason'])}", weight=2)
    return None


def _exited(status: Json) -> Cause | None:
    if status.get("phase") != "Failed":
        return None
    if (end := _end(status)) is None:
        return Cause(text=f"failed: {status.get('reason', '')} {status.get('message', '')}".strip(), weight=1)
    code = int(end.get("exitCode") or 0)
    weight = 3 if code in (*DRAINS, Exit.FAILED_FOR_GOOD) else 1
    return Cause(text=_exit_text(code, end), weight=weight, time=str(end.get("finishedAt") or ""), lasting=weight < 3)


def _exit_text(code: int, end: Json) -> str:
    if code == Exit.KILLED:
        return (
            "exit code 137 (killed by signal 9, SIGKILL, and not by us): by hand, after its grace period, or by a machine that "
            "ran out of memory (kubectl describe node shows SystemOOM; ask for more memory_mb if OOMKilled)"
        )
    number = int(end.get("signal") or 0) or (code - 128 if 128 < code < 160 and code not in DRAINS else 0)
    name = signal.Signals(number).name if number in signal.Signals.__members__.values() else ""
    what = f"killed by signal {number}{f' ({name})' if name else ''}" if number else MEANING.get(code, "crash")
    own = _own_words(str(end.get("message") or "")) if code not in DRAINS else ""
    return f"exit code {code} ({what})" + (f": {own}" if own else "")


def _own_words(log: str) -> str:
    """The error at the end of a container's log, with what follows and what to do; else its last line."""
    lines = log.strip().splitlines()
    begins = [number for number, line in enumerate(lines) if _ERROR.match(line)]
    if not begins or begins[-1] < len(lines) - 6:
        return lines[-1].strip() if lines else ""
    return "\n".join(lines[begins[-1] :]).removeprefix("error: ")


def hanging_line(pod: Json, now: datetime) -> str:
    """A pod whose deletion its machine never confirms: it blocks its own replacement. Empty where it does not hang."""
    asked, machine = pod["metadata"].get("deletionTimestamp"), (pod.get("spec") or {}).get("nodeName") or ""
    if not asked or not machine:
        return ""
    late = (now - datetime.fromisoformat(asked.replace("Z", "+00:00"))).total_seconds()
    if late < _LATE_S:
        return ""
    return f"its machine {machine} does not answer ({late:.0f} s past the grace period), and {_declare_dead(machine)}"


def _declare_dead(machine: str) -> str:
    return (
        "the pod is replaced only when the machine is back, or is declared dead: "
        f"kubectl taint nodes {machine} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    )


def condition(status: Json, kind: str, value: str) -> Json | None:
    """The condition of this type with this status."""
    conditions: list[Json] = status.get("conditions") or []
    return next((found for found in conditions if (found["type"], found["status"]) == (kind, value)), None)


def main_containers(status: Json) -> list[Json]:
    """The statuses of a pod without those of sidecars, which an overlay or the cluster may have added."""
    return [container for container in status.get("containerStatuses") or [] if container.get("name", "main") == "main"]


def _end(status: Json) -> Json | None:
    ends = [(container.get("state") or {}).get("terminated") for container in main_containers(status)]
    return next(filter(None, ends), None)
