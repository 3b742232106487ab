"""The log of one node over all pods that have had its index: followed across restarts and replacements.

A follower waits for the first pod and for its container to start, reads to the end, and then waits for a successor until the
Job has ended. A connection that is cut, goes silent or ends before its container is made again, from the last
line's time stamp on. Kubernetes keeps a log as long as the pod; the run directory keeps every rank's log for good.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

from zephon.fastjson import Json
from zephon.launch.backends.kubernetes.causes import main_containers
from zephon.launch.backends.kubernetes.client import Cluster
from zephon.launch.backends.kubernetes.errors import ClusterError, LogCut, NotFound
from zephon.launch.backends.kubernetes.names import ATTEMPT, INDEX, ROLE, RUN_ID
from zephon.launch.backends.kubernetes.status import has_ended


def node_log(
    cluster: Cluster,
    namespace: str,
    name: str,
    *,
    role: str,
    index: int,
    follow: bool,
    since: datetime | None,
    poll_s: float = 1.0,
) -> Iterator[str]:
    """Lines with their newline, oldest pod first; between two pods a line that names the new one.

    Raises:
        NotFound: there is no such job.
    """
    began = since.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z") if since else ""
    seen: set[str] = set()
    cluster.get("Job", namespace, name)  # an unknown job is an error, one that is deleted while we follow is an end
    while True:
        job = _job(cluster, namespace, name)
        fresh = [] if job is None else [pod for pod in _pods(cluster, job, role, index) if pod["metadata"]["uid"] not in seen]
        for pod in fresh:
            if not _started(pod):
                continue
            if seen:
                yield f"--- {role} {index} goes on in pod {pod['metadata']['name']}\n"
            seen.add(pod["metadata"]["uid"])
            yield from _pod_log(cluster, namespace, pod, follow=follow, since=began, poll_s=poll_s)
        if not follow or job is None or (has_ended(job) and not any(_started(pod) for pod in fresh)):
            return
        if not any(_started(pod) for pod in fresh):
            time.sleep(poll_s)


def _pod_log(cluster: Cluster, namespace: str, pod: Json, *, follow: bool, since: str, poll_s: float) -> Iterator[str]:
    """All lines of one pod, each once, over connections that are cut, go silent or end before their container."""
    name, seen = pod["metadata"]["name"], _Seen(since)
    restarts = -1
    while True:
        try:
            # Asked before the log is read: what is over now has nothing more to say after this reading.
            again = restarts_of(_fresh(cluster, namespace, pod) if restarts >= 0 else pod)
            over = not follow or again is None
            if again is not None and again > max(restarts, 0):
                yield from seen.new(cluster.log_lines(namespace, name, follow=False, previous=True, since=seen.stamp))
            restarts = restarts if again is None else again
            yield from seen.new(cluster.log_lines(namespace, name, follow=not over, since=seen.stamp))
            if over:
                return
        except LogCut:
            pass
        except NotFound:
            yield f"--- the log of pod {name} is gone with the pod\n"
            return
        except ClusterError as error:
            if pod["status"].get("phase") not in ("Failed", "Succeeded"):
                raise
            yield f"--- the log of pod {name} cannot be read any more: {error.what}\n"
            return
        time.sleep(poll_s)


class _Seen:
    """How far a log has been read: its last time stamp, and how many lines have that very stamp."""

    def __init__(self, since: str) -> None:
        self.stamp, self._count = since, 0

    def new(self, lines: Iterator[tuple[str, str]]) -> Iterator[str]:
        """The lines that have not come before; a connection begins with those of the last stamp's whole second."""
        last, left = _order(self.stamp), self._count
        for stamp, line in lines:
            if stamp and self._count and _order(stamp) < last:
                continue
            if stamp and _order(stamp) == last and left:
                left -= 1
                continue
            if stamp:
                self._count = self._count + 1 if stamp == self.stamp else 1
                self.stamp = stamp
            yield line


def _order(stamp: str) -> tuple[str, str]:
    """Sorts stamps, whose fractions may have lost their last zeros."""
    second, _, fraction = stamp.rstrip("Z").partition(".")
    return second, fraction.ljust(9, "0")


def _fresh(cluster: Cluster, namespace: str, pod: Json) -> Json | None:
    try:
        found = cluster.get("Pod", namespace, pod["metadata"]["name"])
    except NotFound:
        return None
    return found if found["metadata"]["uid"] == pod["metadata"]["uid"] else None


def restarts_of(pod: Json | None) -> int | None:
    """How often the container of a pod was restarted; None where it is over and will not be."""
    status = (pod or {}).get("status") or {}
    if pod is None or status.get("phase") in ("Succeeded", "Failed"):
        return None
    return max((int(container.get("restartCount") or 0) for container in main_containers(status)), default=0)


def _job(cluster: Cluster, namespace: str, name: str) -> Json | None:
    try:
        return cluster.get("Job", namespace, name)
    except NotFound:
        return None


def _pods(cluster: Cluster, job: Json, role: str, index: int) -> list[Json]:
    metadata = job["metadata"]
    wanted = {RUN_ID: metadata["labels"][RUN_ID], ATTEMPT: metadata["labels"][ATTEMPT], ROLE: role}
    if role == "node":
        wanted[INDEX] = str(index)
    pods = cluster.find("Pod", metadata["namespace"], labels=",".join(f"{key}={value}" for key, value in wanted.items()))
    return sorted(pods, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))


def _started(pod: Json) -> bool:
    """Whether the container has ever run, so that it has a log."""
    for status in main_containers(pod.get("status") or {}):
        if "waiting" not in (status.get("state") or {}) or status.get("restartCount"):
            return True
    return False
