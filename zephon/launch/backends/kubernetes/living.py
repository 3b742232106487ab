"""What of a run lives in a cluster: Jobs that run, wait in a queue or drain, and pods whose Job is gone.

Two attempts of one run never train together, so a new one asks for these first. They are found by the label of the run
directory, of every user and from every machine, and whatever has become of their Job:

    kubectl delete job                      the Job goes at once; its pods save for their grace period
    kubectl delete job --cascade=foreground the Job stays until its pods have gone
    kubectl delete job --cascade=orphan     the pods train on without a Job
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from zephon.errors import ConfigError
from zephon.fastjson import Json
from zephon.launch.backends.kubernetes import names
from zephon.launch.backends.kubernetes.client import Cluster
from zephon.launch.backends.kubernetes.errors import NotFound
from zephon.launch.backends.kubernetes.queue import queue_status
from zephon.launch.backends.kubernetes.status import Summary, summarize
from zephon.run.state import ENDED

# What a submit makes; a Job takes the rest with it when it is deleted, unless it was told to leave it behind.
KINDS = ("Job", "Pod", "Deployment", "Service", "ConfigMap")
_ENDING_S = 30.0


def labels_of(job: Json) -> str:
    """The selector of a Job's own objects."""
    labels = job["metadata"]["labels"]
    return ",".join(f"{key}={labels[key]}" for key in (names.RUN_ID, names.ATTEMPT) if key in labels)


def attempt_labels(url: str, attempt: int) -> str:
    """The selector of an attempt's objects, also where its Job is gone."""
    return f"{names.RUN_ID}={names.run_id(url)},{names.ATTEMPT}={attempt}"


def check_alone(cluster: Cluster, namespace: str, url: str) -> None:
    """Refuses a new attempt while anything of the run lives; waits for pods that are ending anyway.

    Args:
        url: the run directory, as the nodes see it.
    Raises:
        ConfigError: naming what lives, and how to end it.
    """
    deadline = time.monotonic() + _ENDING_S
    while lives := _living(cluster, namespace, url):
        if not all(ending for _, ending in lives) or time.monotonic() > deadline:
            raise ConfigError(
                f"the run {url} still lives in namespace {namespace}: " + "; ".join(text for text, _ in lives),
                follows="two attempts would train one run at the same time",
                remedy="end it first: zephon stop where it was submitted, or "
                f"kubectl delete jobs,pods,deployments -n {namespace} -l {names.RUN_ID}={names.run_id(url)}",
            )
        time.sleep(0.5)


def _living(cluster: Cluster, namespace: str, url: str) -> list[tuple[str, bool]]:
    """What lives, a sentence each, and whether it is about to end by itself."""
    label = f"{names.RUN_ID}={names.run_id(url)}"
    jobs, pods = cluster.find("Job", namespace, labels=label), alive(cluster.find("Pod", namespace, labels=label))
    found, with_job = [], set[str]()
    for job in jobs:
        attempt = job["metadata"]["labels"].get(names.ATTEMPT, "")
        own = [pod for pod in pods if pod["metadata"]["labels"].get(names.ATTEMPT) == attempt]
        with_job.add(attempt)
        summary = summarize(job, own, queued=queue_status(cluster, job))
        if summary.state not in ENDED:
            found.append((f"Job {job['metadata']['name']} is {summary.state} ({summary.line})", leaving(own) and bool(own)))
        elif own:
            found.append((f"Job {job['metadata']['name']} has ended and {len(own)} of its pods not yet", leaving(own)))
    orphans = [pod for pod in pods if pod["metadata"]["labels"].get(names.ATTEMPT) not in with_job]
    if orphans:
        found.append((orphan_line(orphans), leaving(orphans)))
    return found


def alive(pods: Sequence[Json]) -> list[Json]:
    """The pods of nodes that are not over; a coordinator alone trains nothing."""
    nodes = [pod for pod in pods if (pod["metadata"].get("labels") or {}).get(names.ROLE) == "node"]
    return [pod for pod in nodes if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]


def leaving(pods: Sequence[Json]) -> bool:
    """Whether all of them have been asked to go."""
    return all(pod["metadata"].get("deletionTimestamp") for pod in pods)


def orphan_line(pods: Sequence[Json]) -> str:
    """What is left of an attempt whose Job is gone."""
    count = f"{len(pods)} pod{'s' if len(pods) > 1 else ''} ({pods[0]['metadata']['name']}{', ...' if len(pods) > 1 else ''})"
    if leaving(pods):
        return f"its Job is deleted; {count} still save their state"
    return f"its Job was deleted without its pods: {count} go on without it; stop ends them"


def orphaned(pods: Sequence[Json]) -> Summary:
    """The state of an attempt whose Job is gone and whose pods live."""
    return Summary(state="DRAINING" if leaving(pods) else "RUNNING", line=orphan_line(pods), wanted=len(pods))


def end_orphans(cluster: Cluster, namespace: str, labels: str) -> None:
    """Asks every pod of an attempt without a Job to go, and removes what its Job would have taken with it."""
    for kind in KINDS[1:]:
        for item in cluster.find(kind, namespace, labels=f"{labels},{names.ROLE}=node" if kind == "Pod" else labels):
            if not item["metadata"].get("deletionTimestamp"):
                with contextlib.suppress(NotFound):  # it has just gone
                    cluster.delete(kind, namespace, item["metadata"]["name"])


def left(cluster: Cluster, namespace: str, labels: str) -> list[str]:
    """Names of what is there of an attempt."""
    return [f"{kind} {item['metadata']['name']}" for kind in KINDS for item in cluster.find(kind, namespace, labels=labels)]
