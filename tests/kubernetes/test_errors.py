"""What an API server says becomes what, why and what to do."""

from __future__ import annotations

import pytest

from zephon.launch.backends.kubernetes.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    NotFound,
    Unauthorized,
    Unavailable,
    no_api_server,
    no_cluster,
    refusal,
    unknown_line,
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
        (401, "Unauthorized", Unauthorized, "renew the login"),
        (429, "slow down", Unavailable, "try again later"),
        (500, "boom", Unavailable, "try again"),
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


def test_why_a_state_is_not_known_is_told_apart() -> None:
    page = "<html><head><title>Sign in to\n Example</title></head></html>"
    errors = [refusal(status, {"message": "m"}, action="read Job n/j") for status in (401, 403, 429, 502)]
    lines = [unknown_line(error) for error in [*errors, unreachable("h", "x", seconds=1), no_api_server("h", 200, page)]]
    assert [line.partition(": read Job")[0] for line in lines[:4]] == [
        "the cluster does not know who asks",
        "you may not ask the cluster",
        "the cluster cannot say now: the API server has too many requests (HTTP 429) and has not carried out this one",
        "the cluster cannot say now: the API server is in trouble (HTTP 502) and has not carried it out; what runs goes on",
    ]
    assert lines[4].startswith("the cluster does not answer: the API server h did not answer")
    assert "what answers at h is no API server (HTTP 200): 'Sign in to Example'; fix: look for a proxy" in lines[5]
