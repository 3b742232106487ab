"""Rescale: one patch of exactly two fields, which keeps every pod that stays.

The Job controller removes the highest indexes first and leaves the rest alone. The patch carries the resourceVersion that
was read, so it cannot overwrite somebody else's; status updates change that version too, so a conflict is looked at: the
same node count as before means try again, another one is shown to the user.
"""

from __future__ import annotations

import dataclasses

from zephon.errors import ConfigError
from zephon.fastjson import Json
from zephon.launch.backends.kubernetes.client import Cluster
from zephon.launch.backends.kubernetes.errors import Conflict
from zephon.launch.backends.kubernetes.names import NODES_MAX, NODES_MIN
from zephon.launch.backends.kubernetes.queue import is_elastic, is_queued

ATTEMPTS = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rescaled:
    """What a rescale did: node counts before and after, and a sentence on what happens to the pods."""

    before: int
    after: int
    note: str


def rescale_job(cluster: Cluster, namespace: str, name: str, nodes: int) -> Rescaled:
    """Sets parallelism and completions together.

    Raises:
        ConfigError: a count outside the Job's limits, or a Job that has ended or is ending.
        Conflict: somebody else changed the node count meanwhile; both values are shown.
    """
    job = cluster.get("Job", namespace, name)
    check_rescale(job, nodes)
    before = int(job["spec"]["completions"])
    if before == nodes:
        return Rescaled(before=before, after=nodes, note=f"it already has {nodes} nodes; nothing was changed")
    for _ in range(ATTEMPTS):
        change = {
            "metadata": {"resourceVersion": job["metadata"]["resourceVersion"]},
            "spec": {"parallelism": nodes, "completions": nodes},
        }
        try:
            cluster.patch("Job", namespace, name, change)
        except Conflict:
            job = cluster.get("Job", namespace, name)
            check_rescale(job, nodes)
            now = int(job["spec"]["completions"])
            if now != before:
                raise Conflict(
                    f"rescale {namespace}/{name} to {nodes}: somebody else changed it from {before} to {now} nodes meanwhile",
                    follows="their change would be overwritten without their knowledge",
                    remedy=f"rescale again if {nodes} is still what you want",
                ) from None
        else:
            return Rescaled(before=before, after=nodes, note=effect(job, nodes))
    raise Conflict(
        f"rescale {namespace}/{name} to {nodes}: the Job changed at each of {ATTEMPTS} tries",
        follows="the patch was not applied",
        remedy="try again; kubectl get job -w shows who writes to it",
    )


def check_rescale(job: Json, nodes: int) -> None:
    """Refuses what cannot work, before the API server is asked."""
    metadata, status, spec = job["metadata"], job.get("status") or {}, job["spec"]
    annotations = metadata.get("annotations") or {}
    low, high = int(annotations.get(NODES_MIN, 1)), int(annotations.get(NODES_MAX, max(nodes, 1)))
    if nodes == 0:
        raise ConfigError(
            "nodes=0 is not a size",
            follows="Kubernetes would call the Job complete, and it could never run again",
            remedy="use stop, which saves and keeps the job",
        )
    if not low <= nodes <= high:
        raise ConfigError(
            f"nodes={nodes} is outside {low}..{high}, the limits this attempt was started with",
            follows="its agents would not accept so few or so many",
            remedy="choose a size within the limits, or stop and start anew with other elastic.nodes_min and nodes_max",
        )
    check_not_ended(job, "rescale")
    done = int(status.get("succeeded") or 0)
    if done and nodes < int(spec["completions"]):
        raise ConfigError(
            f"{done} of {spec['completions']} nodes have finished the last step",
            follows="scaling below the finished nodes wedges the Job and, with a queue, its quota",
            remedy="wait for the run to end",
        )


def check_not_ended(job: Json, verb: str) -> None:
    """Refuses a verb that only a job that still runs, waits or is stopped can obey."""
    conditions = (job.get("status") or {}).get("conditions") or []
    ended = [c["type"] for c in conditions if c["status"] == "True" and c["type"] in ("Complete", "Failed")]
    if ended or job["metadata"].get("deletionTimestamp"):
        raise ConfigError(
            f"the job {job['metadata']['name']} has ended ({', '.join(ended) or 'it is being deleted'})",
            follows=f"there is nothing to {verb}",
            remedy="zephon resume starts a new attempt from the last checkpoint",
        )


def effect(job: Json, nodes: int) -> str:
    """What a rescale does to the pods, said before it happens."""
    before = int(job["spec"]["completions"])
    queued = is_queued(job)
    if job["spec"].get("suspend"):
        return f"the job is suspended; it will start with {nodes} nodes"
    if queued and not is_elastic(job):
        return "this cluster's Kueue does not scale Jobs in place: every pod is stopped and started again at the new size"
    if nodes < before:
        return f"nodes 0..{nodes - 1} stay, {nodes}..{before - 1} drain and leave"
    wait = " as quota allows" if queued else ""
    return f"nodes 0..{before - 1} stay, {before}..{nodes - 1} join{wait}"
