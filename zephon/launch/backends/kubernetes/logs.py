"""The log of one node over all pods that have had its index: followed across restarts and replacements.

A follower waits for the first pod and for its container to start, reads to the end, and then waits for a successor until the
Job has ended. Kubernetes keeps a log as long as the pod; the run directory keeps every rank's log for good.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

from zephon.fastjson import Json
from zephon.launch.backends.kubernetes.causes import main_containers
from zephon.launch.backends.kubernetes.client import Cluster
from zephon.launch.backends.kubernetes.errors import ClusterError, NotFound
from zephon.launch.backends.kubernetes.names import ATTEMPT, INDEX, ROLE, RUN_ID


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
    since_s = max(1, int((datetime.now(UTC) - since.astimezone(UTC)).total_seconds())) if since else 0
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
            yield from _pod_log(cluster, namespace, pod, follow=follow, since_s=since_s)
        if not follow or job is None or (_ended(job) and not any(_started(pod) for pod in fresh)):
            return
        if not any(_started(pod) for pod in fresh):
            time.sleep(poll_s)


def _pod_log(cluster: Cluster, namespace: str, pod: Json, *, follow: bool, since_s: int) -> Iterator[str]:
    name = pod["metadata"]["name"]
    restarted = any(status.get("restartCount") for status in main_containers(pod.get("status") or {}))
    try:
        if restarted:
            yield from cluster.log_lines(namespace, name, follow=False, previous=True)
        yield from cluster.log_lines(namespace, name, follow=follow, since_s=since_s)
    except NotFound:
        yield f"--- the log of pod {name} is gone with the pod\n"
    except ClusterError as error:
        if pod["status"].get("phase") not in ("Failed", "Succeeded"):
            raise
        yield f"--- the log of pod {name} cannot be read any more: {error.what}\n"


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


def _ended(job: Json) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or []
    return any(c["status"] == "True" and c["type"] in ("Complete", "Failed") for c in conditions)
