"""A submit: the Job first, then what it owns. It is safe to repeat, and it is undone wherever it is cut off.

    dry run on the server ─► Job ─► ConfigMap, Secret, Service, ... owned by it     an error, Ctrl-C: the Job is deleted

The name is fixed beforehand, and every object carries the submit's id: an object of this id is found again after a lost
answer, one of another id is somebody else's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from zephon.fastjson import Json
from zephon.launch.backends.kubernetes import names
from zephon.launch.backends.kubernetes.client import Cluster
from zephon.launch.backends.kubernetes.errors import ClusterError, Conflict, NotFound
from zephon.launch.backends.kubernetes.manifest import owned_by, with_value


def create_all(cluster: Cluster, documents: Sequence[Json], *, dry_run: bool) -> Json:
    """Creates a Job and what it owns; returns the Job as it is stored.

    Args:
        documents: the Job first, then the ConfigMap that owns the Secret with it.
        dry_run: the server checks all of them before the first is created.
    Raises:
        ClusterError: refused or unreachable; then nothing stays in the cluster, unless it cannot be reached to undo it.
    """
    job, *children = documents
    created = ours(cluster, job)
    if created is None:
        for document in documents if dry_run else ():
            cluster.create(document, dry_run=True)
    try:
        created = created or create_once(cluster, job)
        first, *others = children
        specification = create_once(cluster, owned_by(first, [created]))
        for child in others:
            secret = child["kind"] == "Secret"
            create_once(
                cluster, with_value(owned_by(child, [created, specification])) if secret else owned_by(child, [created])
            )
    except BaseException:  # Ctrl-C too
        _undo(cluster, job)
        raise
    return created


def create_once(cluster: Cluster, document: Json) -> Json:
    """Creates an object, or finds the one that an earlier try of this submit has made."""
    try:
        return cluster.create(document)
    except Conflict:
        if document["kind"] == "Secret":  # its name is of this very submit, and nobody here may read it
            return document
        if existing := ours(cluster, document):
            return existing  # the answer to an earlier try was lost
        raise


def _undo(cluster: Cluster, job: Json) -> None:
    with contextlib.suppress(ClusterError):  # where it cannot be reached, the next start finds what is left
        if ours(cluster, job) is not None:
            cluster.delete("Job", job["metadata"]["namespace"], job["metadata"]["name"])


def ours(cluster: Cluster, document: Json) -> Json | None:
    """The stored object if it comes from this very submit; Conflict where the name is somebody else's."""
    kind, namespace, name = document["kind"], document["metadata"]["namespace"], document["metadata"]["name"]
    try:
        existing = cluster.get(kind, namespace, name)
    except NotFound:
        return None
    leaving = bool(existing["metadata"].get("deletionTimestamp"))
    annotations, wanted = existing["metadata"].get("annotations") or {}, document["metadata"]["annotations"]
    if not leaving and annotations.get(names.SUBMISSION) == wanted[names.SUBMISSION]:
        return existing
    raise _taken(kind, namespace, name, leaving=leaving, theirs=annotations.get(names.RUN_URL), run=wanted.get(names.RUN_URL))


def _taken(kind: str, namespace: str, name: str, *, leaving: bool, theirs: str | None, run: str | None) -> Conflict:
    if theirs is not None and theirs != run:
        return Conflict(
            f"{kind} {namespace}/{name} already exists, and belongs to another run: {theirs}",
            follows=f"that run and {run} would share one name and one set of pods",
            remedy="choose another name=",
        )
    return Conflict(
        f"{kind} {namespace}/{name} already exists{' and is being deleted' if leaving else ''}",
        follows="two attempts would share one name and one set of pods",
        remedy="wait until it is gone"
        if leaving
        else f"kubectl delete {kind.lower()} {name} -n {namespace}, or use another name=",
    )
