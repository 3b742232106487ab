"""What an attempt's events say of it, and what the launcher adds to them: causes that the cluster forgets with the pod.

A status writes down each cause once: the pod may be gone the next time, and the Job with it.

    node_ended      a node was lost, evicted, killed, out of memory, has crashed, or cannot get its image: pod, machine, cause
    node_refused    the cluster refuses to create the pods: a quota, pod security, an admission check
    queued          why the queue lets the job wait
"""

from __future__ import annotations

from collections.abc import Sequence

from zephon.launch.backends.kubernetes.status import Summary
from zephon.run.directory import RunDir
from zephon.run.events import Event, EventLog
from zephon.run.state import Counts, Resized


def history(events: Sequence[Event]) -> tuple[Resized | None, Counts]:
    """The last change of size, and how often what happened."""
    resizes = [event for event in events if event.kind == "resized"]
    lost = [event for event in events if event.kind == "rerendezvous" and str(event.details["reason"]).startswith("lost")]
    failures = [event for event in events if event.kind == "workers_exited" and event.details.get("error")]
    counts = Counts(failures=len(failures), lost=len(lost), resizes=len(resizes))
    return (Resized.from_json(resizes[-1].details) if resizes else None), counts


def record_causes(rundir: RunDir, attempt: int, summary: Summary, events: Sequence[Event]) -> None:
    """Adds the causes that are not in the events yet; nothing where this user may not write them."""
    log = EventLog(rundir, attempt, "launcher", quiet=True)
    known = {event.details.get("uid") for event in events if event.kind == "node_ended"}
    for pod in summary.pods:
        if pod.cause and pod.cause.lasting and pod.uid not in known:
            log.write("node_ended", pod=pod.name, uid=pod.uid, machine=pod.machine, ended=pod.cause.time, cause=pod.trouble)
    for kind, cause in (("node_refused", summary.refused), ("queued", summary.waits)):
        if cause and not any(event.kind == kind and event.details.get("cause") == cause for event in events):
            log.write(kind, cause=cause)
