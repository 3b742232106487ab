"""Which Job is an attempt's: by what its submit recorded, and never by a name alone."""

from __future__ import annotations

import dataclasses

from zephon.fastjson import Json
from zephon.launch.backends.kubernetes import names
from zephon.launch.backends.kubernetes.client import Cluster
from zephon.launch.backends.kubernetes.errors import NotFound
from zephon.launch.backends.kubernetes.manifest import Request
from zephon.run.directory import RunDir
from zephon.run.lease import read_lease
from zephon.run.placement import Placement
from zephon.run.specs import read_spec
from zephon.run.state import AttemptState


def placement_of(cluster: Cluster, request: Request) -> Placement:
    """What is recorded before a request is sent."""
    return Placement(
        app_id=f"{request.namespace}:{request.name}",
        server=cluster.server,
        cluster=cluster.identity(request.namespace),
        submission=request.documents[0]["metadata"]["annotations"][names.SUBMISSION],
    )


def find_job(cluster: Cluster, placement: Placement) -> Json | None:
    """The attempt's own Job; None where there is none, or only one of the same name."""
    namespace, _, name = placement.app_id.partition(":")
    try:
        job = cluster.get("Job", namespace, name)
    except NotFound:
        return None
    metadata = job["metadata"]
    if placement.job:
        return job if metadata["uid"] == placement.job else None
    return job if (metadata.get("annotations") or {}).get(names.SUBMISSION) == placement.submission else None


def is_complete(cluster: Cluster, job: Json) -> bool:
    """Whether all of a submit's objects are there: the coordinator's Deployment is made last."""
    try:
        cluster.get("Deployment", job["metadata"]["namespace"], f"{job['metadata']['name']}-coordinator")
    except NotFound:
        return False
    return True


def elsewhere_line(cluster: Cluster, placement: Placement) -> str:
    """A sentence where this is another cluster than the attempt's; empty where it is the same."""
    if not placement.elsewhere(cluster.server, cluster.identity(placement.app_id.partition(":")[0])):
        return ""
    return f"it was submitted to the cluster at {placement.server}, and the cluster asked is another one, at {cluster.server}"


def unsubmitted(recorded: AttemptState, rundir: RunDir, attempt: int, why: str) -> AttemptState:
    """The state of an attempt whose submit did not come to its end, or has not yet."""
    lease = read_lease(rundir)
    if lease is not None and lease.binds and not lease.ours:
        return dataclasses.replace(recorded, state="STARTING", message=f"being submitted by {lease.holder}")
    return dataclasses.replace(recorded, state="UNSUBMITTED", members=(), message=f"{why}; resume starts it anew")


def nodes_url(rundir: RunDir, attempt: int) -> str:
    """The run directory as the nodes see it, which their objects are labelled with."""
    spec = read_spec(rundir, attempt)
    return f"{spec.runs.rstrip('/')}/{spec.name}"
