"""What the API server refused, as a three-part error that a user can act on.

ClusterError            the cluster cannot be reached, or refuses
├── NoAnswer            nobody answered, or something that is no API server: a proxy's page
├── LogCut              a log's connection ended before the log
├── Unavailable         (429, 5xx) the API server answers, and is too busy or in trouble
├── Unauthorized        (401) the credentials are not, or no longer, known
├── NotFound            (404) the object or its namespace is not there
├── Forbidden           (403) missing RBAC rule, exhausted quota, refused by admission
└── Conflict            (409) the name is taken, or somebody else changed the object meanwhile
"""

from __future__ import annotations

import re

from zephon.errors import ZephonError
from zephon.fastjson import Json
from zephon.launch.backends.base import Away

_RBAC = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]*)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]*)")?'
)


class ClusterError(ZephonError):
    """The cluster cannot be reached, or refused a request."""


class NoAnswer(ClusterError, Away):
    """The API server did not answer, or there is no address to ask."""


class LogCut(ClusterError):
    """The connection over which a log came ended before the log, or went silent."""


class Unavailable(ClusterError):
    """The API server answers that it cannot serve now, and went on doing so."""


class Unauthorized(ClusterError):
    """The credentials are not known to the cluster."""


class NotFound(ClusterError):
    """The object, or the namespace it should be in, does not exist."""


class Forbidden(ClusterError):
    """Access rules, a quota or an admission check refused the request."""


class Conflict(ClusterError):
    """The name is taken, or the object was changed by somebody else meanwhile."""


def refusal(status: int, answer: Json, *, action: str) -> ClusterError:
    """The error for an HTTP status and the API server's ``Status`` object.

    Args:
        action: what was tried, for example ``create Job zephon/exp1-1``.
    """
    message = str(answer.get("message") or answer.get("reason") or f"HTTP {status}")
    what = f"{action}: {message}"
    if status == 401:
        return Unauthorized(
            what,
            follows="the cluster does not know who is asking, also after the credentials were read again",
            remedy="renew the login of the current kubeconfig context (kubectl auth whoami shows who you are)",
        )
    if status == 403:
        return _forbidden(what, message)
    if status == 404:
        missing = re.match(r'namespaces "([^"]*)" not found', message)
        return NotFound(
            what,
            follows="nothing can be created in a namespace that is not there" if missing else "there is nothing to act on",
            remedy=f"kubectl create namespace {missing[1]}, or kubectl apply -k k8s/base"
            if missing
            else "zephon list shows jobs",
        )
    if status == 409:
        return Conflict(
            what,
            follows="somebody else's object or change would be overwritten",
            remedy="look at it with kubectl get -o yaml and try again, or choose another name",
        )
    if status == 422 or status == 400:
        return ClusterError(
            what,
            follows="the API server does not accept this object",
            remedy="correct the named field; fields that zephon does not know itself come from the overlay",
        )
    if status == 429:
        return Unavailable(
            what,
            follows="the API server has too many requests (HTTP 429) and has not carried out this one",
            remedy="try again later; if it stays, ask the cluster's administrator which client floods it",
        )
    if status >= 500:
        return Unavailable(
            what,
            follows=f"the API server is in trouble (HTTP {status}) and has not carried it out; what runs goes on",
            remedy="try again; kubectl get --raw /readyz?verbose tells an administrator which part of it is ill",
        )
    return ClusterError(what, follows="the request was not carried out", remedy="try again")


def no_api_server(server: str, status: int, text: str) -> NoAnswer:
    """The error for an answer that is no API server's: a proxy's or a login's page."""
    title = re.search(r"<title[^>]*>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
    said = " ".join(title[1].split()) if title else " ".join(text.split())[:80]
    return NoAnswer(
        f"what answers at {server} is no API server (HTTP {status}): {said!r}",
        follows="nothing is known about the cluster; jobs there run on without the launcher",
        remedy="look for a proxy or a login in between: HTTPS_PROXY and NO_PROXY, the VPN, the address in the kubeconfig",
    )


def _forbidden(what: str, message: str) -> Forbidden:
    rule = _RBAC.search(message)
    if rule:
        return Forbidden(
            what,
            follows="the launcher cannot do this part of its work",
            remedy=f"have an administrator grant {rule['user']} this rule (k8s/base/rbac.yaml holds the whole role): "
            f'{{apiGroups: ["{rule["group"]}"], resources: ["{rule["resource"]}"], verbs: ["{rule["verb"]}"]}}',
        )
    if "exceeded quota" in message:
        return Forbidden(
            what,
            follows="the namespace's ResourceQuota has no room for it",
            remedy="ask for fewer nodes or less memory, end another job (zephon list), or have the quota raised",
        )
    if "violates PodSecurity" in message:
        return Forbidden(
            what,
            follows="the namespace demands a stricter pod than this one",
            remedy="take the named setting out of the overlay or the volumes",
        )
    if "admission webhook" in message:
        return Forbidden(
            what,
            follows="an admission check of the cluster forbids it, whatever your role is",
            remedy="change what the message names; a running Kueue job cannot change queue or priority",
        )
    return Forbidden(what, follows="the request was not carried out", remedy="ask the cluster's administrator")


def unreachable(server: str, reason: str, *, seconds: float) -> ClusterError:
    """The error for an API server that did not answer within the retry budget."""
    return NoAnswer(
        f"the API server {server} did not answer for {seconds:.0f} s: {reason}",
        follows="nothing is known about the cluster; jobs there run on without the launcher",
        remedy="check the address and context (kubectl config get-contexts) and try again",
    )


def unknown_line(error: ClusterError) -> str:
    """Why a state is not known: nobody answers, or the answer is a refusal; in one line."""
    why = {
        NoAnswer: "the cluster does not answer",
        Unavailable: f"the cluster cannot say now: {error.follows}",
        Unauthorized: "the cluster does not know who asks",
        Forbidden: "you may not ask the cluster",
    }.get(type(error), "the cluster does not say")
    return f"{why}: {error.what}; fix: {error.remedy}"


def no_cluster(reason: str, *, context: str | None) -> ClusterError:
    """The error for a kubeconfig that is missing, broken or lacks the context."""
    return NoAnswer(
        f"no cluster to talk to{f' under context={context!r}' if context else ''}: {reason}",
        follows="the job cannot be submitted; plan works without a cluster",
        remedy="set KUBECONFIG or scheduler.options.kubeconfig to a kubeconfig file, and scheduler.options.context to one of "
        "its contexts (kubectl config get-contexts)",
    )
