"""What an attempt's events say of it, and what the launcher adds to them: causes that the cluster forgets with the pod.

A status writes down each cause once: the pod may be gone the next time, and the Job with it. So does a watcher beside the
coordinator, where one is asked for (watch.py). Where nobody looked in time there are two more witnesses: the coordinator, which
has seen a node go silently, and the API server's events of its pod, which live for an hour or so.

    node_ended      a node was lost, evicted, killed, out of memory, has crashed, or cannot get its image: pod, machine, cause
    node_refused    the cluster refuses to create the pods: a quota, pod security, an admission check
    queued          why the queue lets the job wait
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from zephon.fastjson import Json
from zephon.launch.backends.kubernetes import names
from zephon.launch.backends.kubernetes.client import Cluster
from zephon.launch.backends.kubernetes.status import Summary
from zephon.run.checkpoints import newest_checkpoint
from zephon.run.directory import RunDir
from zephon.run.events import Event, EventLog
from zephon.run.progress import read_progress
from zephon.run.state import Counts, Resized

_ENDS = ("Killing", "Preempted", "TaintManagerEviction", "Evicted")  # ordinary events that end a pod


def history(events: Sequence[Event]) -> tuple[Resized | None, Counts]:
    """The last change of size, and how often what happened."""
    resizes = [event for event in events if event.kind == "resized"]
    lost = [event for event in events if event.kind == "rerendezvous" and str(event.details["reason"]).startswith("lost")]
    failures = [event for event in events if event.kind == "workers_exited" and event.details.get("error")]
    counts = Counts(failures=len(failures), lost=len(lost), resizes=len(resizes))
    return (Resized.from_json(resizes[-1].details) if resizes else None), counts


def failed_drain(rundir: RunDir, attempt: int, events: Sequence[Event]) -> str:
    """Why the end of the last generation was no clean stop; empty where it was one.

    The coordinator says so. Where it could not, the run's own files do: this generation has made steps that no checkpoint has.
    """
    last = next((event for event in reversed(events) if event.kind in ("drain_failed", "generation")), None)
    if last is not None and last.kind == "drain_failed":
        return str(last.details["cause"])
    progress, saved = read_progress(rundir, attempt), max(newest_checkpoint(rundir), 0)
    ours = last is not None and progress is not None and progress.generation == last.details["generation"]
    lost = progress.step - saved if progress is not None and ours else 0
    return f"{lost} steps were lost in the drain (the last checkpoint is of step {saved})" if lost > 0 else ""


def record_causes(rundir: RunDir, attempt: int, summary: Summary, events: Sequence[Event], *, who: str = "launcher") -> None:
    """Adds the causes that are not in the events yet; nothing where this user may not write them."""
    log = EventLog(rundir, attempt, who, quiet=True)
    known = {event.details.get("uid") for event in events if event.kind == "node_ended"}
    for pod in summary.pods:
        if pod.cause and pod.cause.lasting and pod.uid not in known:
            log.write("node_ended", pod=pod.name, uid=pod.uid, machine=pod.machine, ended=pod.cause.time, cause=pod.trouble)
    for kind, cause in (("node_refused", summary.refused), ("queued", summary.waits)):
        if cause and not any(event.kind == kind and event.details.get("cause") == cause for event in events):
            log.write(kind, cause=cause)


def record_gone(
    cluster: Cluster,
    namespace: str,
    rundir: RunDir,
    attempt: int,
    there: Collection[str],
    events: Sequence[Event],
    *,
    who: str = "launcher",
) -> None:
    """Adds a cause for each node that went silently, and whose pod is gone too.

    Args:
        there: UIDs of the pods that are there.

    Raises:
        ClusterError: the events may not be read, or there is no answer.
    """
    log = EventLog(rundir, attempt, who, quiet=True)
    for node, when in _vanished(events).items():
        pod, _, uid = node.partition("@")
        if uid and uid not in there:
            ended = datetime.fromtimestamp(when, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
            fields = f"involvedObject.kind=Pod,involvedObject.uid={uid}"
            said = _last_words(cluster.find("Event", namespace, fields=fields))
            log.write("node_ended", pod=pod, uid=uid, machine="", ended=ended, cause=f"pod {pod} is gone: {said}")


def _vanished(events: Sequence[Event]) -> dict[str, float]:
    """Nodes that the coordinator lost although nobody had asked them to leave, with the time; no cause is known yet."""
    found: dict[str, float] = {}
    leaving = set[str]()
    for event in events:
        node = str(event.details.get("node", ""))
        if event.kind == "finish":  # they end with the job
            break
        if event.kind == "node_hello":
            found.pop(node, None)
        elif event.kind == "node_leaving":
            leaving.add(node)
        elif event.kind == "node_gone" and node not in leaving:
            found[node] = event.time
    known = {event.details.get("uid") for event in events if event.kind == "node_ended"}
    return {node: when for node, when in found.items() if node.partition("@")[2] not in known}


def _last_words(events: Sequence[Json]) -> str:
    """What the cluster still has of a pod's end: a warning before an ordinary note, the newest first."""
    order = sorted(events, key=lambda event: (event.get("type") == "Warning", str(event.get("lastTimestamp") or "")))
    telling = [event for event in order if event.get("type") == "Warning" or event.get("reason") in _ENDS]
    if not telling:
        return "nobody looked at it while it was there, and the cluster has no event that says why"
    return f"{telling[-1].get('reason', '')}: {telling[-1].get('message', '')}"


def warnings_of(cluster: Cluster, job: Json, pods: Sequence[Json]) -> Sequence[Json]:
    """The Job's warning events, asked for only where pods are missing."""
    nodes = [pod for pod in pods if pod["metadata"]["labels"].get(names.ROLE) == "node"]
    if job["spec"].get("suspend") or len(nodes) >= int(job["spec"].get("completions") or 0):
        return ()
    fields = f"involvedObject.kind=Job,involvedObject.name={job['metadata']['name']},type=Warning"
    return cluster.find("Event", job["metadata"]["namespace"], fields=fields)
