"""What only the cluster can say before a submit: the rights of every verb, room in its quotas, and whether it admits the pods.

A submit that succeeds although ``stop`` or ``logs`` would be refused later leaves a run that its owner cannot end.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from zephon.errors import ConfigError
from zephon.fastjson import Json
from zephon.launch.backends.kubernetes.client import Cluster
from zephon.launch.backends.kubernetes.errors import Forbidden
from zephon.launch.backends.kubernetes.manifest import Request
from zephon.launch.backends.kubernetes.options import KubernetesOptions
from zephon.launch.backends.kubernetes.queue import check_queue
from zephon.launch.backends.kubernetes.quotas import quota_remarks
from zephon.launch.backends.kubernetes.submit import ours


class Right(NamedTuple):
    """One rule that the verbs of the command line need."""

    group: str
    resource: str
    verb: str
    needed_by: str
    subresource: str = ""

    @property
    def path(self) -> str:
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource

    @property
    def rule(self) -> str:
        return f'{{apiGroups: ["{self.group}"], resources: ["{self.path}"], verbs: ["{self.verb}"]}}'


_OWNED = (("apps", "deployments"), ("", "configmaps"), ("", "services"))
RIGHTS = (
    *(Right("batch", "jobs", verb, by) for verb, by in (("create", "run"), ("get", "status"), ("list", "run"))),
    Right("batch", "jobs", "patch", "stop, resume, rescale"),
    Right("batch", "jobs", "delete", "resume"),
    *(Right(group, resource, "create", "run") for group, resource in _OWNED),
    *(Right(group, resource, "get", "run") for group, resource in _OWNED),
    *(Right(group, resource, "list", "resume") for group, resource in _OWNED),
    *(Right(group, resource, "delete", "stop of orphaned pods") for group, resource in _OWNED),
    Right("", "secrets", "create", "run"),
    Right("", "pods", "get", "logs"),
    Right("", "pods", "list", "run, status, logs"),
    Right("", "pods", "delete", "stop of orphaned pods"),
    Right("", "pods", "get", "logs", "log"),
    Right("", "events", "list", "status"),
)
QUEUE_RIGHTS = (
    Right("kueue.x-k8s.io", "workloads", "list", "status"),
    Right("kueue.x-k8s.io", "workloads", "patch", "stop, resume"),
)


def examine(cluster: Cluster, request: Request, options: KubernetesOptions) -> tuple[str, ...]:
    """Asks everything that can be asked without creating anything; returns remarks.

    Raises:
        ConfigError: a right is missing, or a quota can never hold the job.
        ClusterError: the API server refuses an object, or a pod of it.
    """
    wanted = [*RIGHTS, *(QUEUE_RIGHTS if options.queue else ())]
    if missing := missing_rights(cluster, options.namespace, wanted):
        raise _no_right(options.namespace, missing)
    check_queue(cluster, options)
    warnings: list[str] = []
    for document in request.documents if options.server_dry_run else ():
        if document["kind"] != "Secret":  # whose name is new each time, and which nobody may read
            ours(cluster, document)  # a name that is taken is told with the run that has it
        cluster.create(document, dry_run=True, warnings=warnings)
    job = request.documents[0]
    admitted = check_pod(cluster, job)
    remarks = [f"the API server warns: {warning}" for warning in dict.fromkeys(warnings) if not admitted]
    return (*remarks, *quota_remarks(cluster, request))


def missing_rights(cluster: Cluster, namespace: str, rights: Iterable[Right]) -> list[Right]:
    """Those that the user does not have, by SelfSubjectAccessReview, which every user may ask."""
    wanted, _ = list(rights), cluster.server  # one connection for all threads
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        allowed = list(pool.map(lambda right: _allowed(cluster, namespace, right), wanted))
    return [right for right, yes in zip(wanted, allowed, strict=True) if not yes]


def _allowed(cluster: Cluster, namespace: str, right: Right) -> bool:
    attributes = {"namespace": namespace, "verb": right.verb, "group": right.group, "resource": right.resource}
    if right.subresource:
        attributes["subresource"] = right.subresource
    answer = cluster.request(
        "POST",
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        body={
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        },
        action="ask for one's own rights",
    )
    return bool(answer["status"].get("allowed"))


def _no_right(namespace: str, missing: Sequence[Right]) -> ConfigError:
    what = "; ".join(f"{right.verb} {right.path} (for {right.needed_by})" for right in missing)
    queue = " and k8s/components/kueue/rbac.yaml" if any(right.group == "kueue.x-k8s.io" for right in missing) else ""
    return ConfigError(
        f"you may not do in namespace {namespace}: {what}",
        follows="the run could be started, and then not be followed, stopped or cleaned up by you",
        remedy=f"have an administrator bind the role of k8s/base/rbac.yaml{queue} to you, or add: "
        + ", ".join(right.rule for right in missing),
    )


def check_pod(cluster: Cluster, job: Json) -> bool:
    """Has the API server check a pod of the job; False where this user may not even ask for a pod.

    Raises:
        Forbidden: the namespace does not admit it: pod security, a quota, a limit range, a webhook.
    """
    template, namespace, name = job["spec"]["template"], job["metadata"]["namespace"], job["metadata"]["name"]
    metadata = {**template["metadata"], "name": f"{name}-0-check", "namespace": namespace}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    try:
        cluster.create(pod, dry_run=True)
    except Forbidden as error:
        if 'cannot create resource "pods"' in error.what:
            return False
        if "exceeded quota" not in error.what:  # how much is missing of which quota is said below
            raise
    return True
