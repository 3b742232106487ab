"""What an API server says becomes what, why and what to do."""

from __future__ import annotations

import pytest

from zephon.launch.backends.kubernetes.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    NotFound,
    no_cluster,
    refusal,
    unreachable,
)

RBAC = 'jobs.batch is forbidden: User "alice" cannot create resource "jobs" in API group "batch" in the namespace "team"'
QUOTA = 'pods "x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=4, limited: pods=4'
SECURITY = 'pods "x" is forbidden: violates PodSecurity "restricted:latest": hostPath volumes (volume "usr")'
WEBHOOK = 'admission webhook "vjob.kb.io" denied the request: metadata.labels[kueue.x-k8s.io/queue-name]: field is immutable'


@pytest.mark.parametrize(
    ("status", "message", "kind", "remedy"),
    [
        (403, RBAC, Forbidden, '{apiGroups: ["batch"], resources: ["jobs"], verbs: ["create"]}'),
        (403, QUOTA, Forbidden, "ask for fewer nodes"),
        (403, SECURITY, Forbidden, "take the named setting out of the overlay or the volumes"),
        (403, WEBHOOK, Forbidden, "cannot change queue or priority"),
        (404, 'namespaces "team" not found', NotFound, "kubectl create namespace team"),
        (404, 'jobs.batch "x" not found', NotFound, "zephon list"),
        (409, 'jobs.batch "x" already exists', Conflict, "choose another name"),
        (422, "Job is invalid: spec.x", ClusterError, "correct the named field"),
        (401, "Unauthorized", ClusterError, "renew the login"),
        (500, "boom", ClusterError, "try again"),
    ],
)
def test_a_refusal_carries_the_servers_words_and_a_remedy(
    status: int, message: str, kind: type[ClusterError], remedy: str
) -> None:
    error = refusal(status, {"message": message}, action="create Job team/x")
    assert type(error) is kind
    assert error.what == f"create Job team/x: {message}"
    assert remedy in error.remedy


def test_a_cluster_that_cannot_be_reached_is_not_called_a_failed_job() -> None:
    assert "run on without the launcher" in str(unreachable("https://h", "refused", seconds=60))
    assert "plan works without a cluster" in str(no_cluster("no file", context=None))
