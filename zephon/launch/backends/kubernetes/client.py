"""The only place that talks to the API server: plain JSON in and out, bounded waits, three-part errors.

A request that meets a connection error, a server that restarts or a webhook that is down is repeated until ``retry_s``;
a 401 reads the credentials again and is repeated once. A create is safe to repeat because the name is fixed beforehand:
the caller recognises its own object by the submission id.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator
from typing import Any

from zephon.fastjson import Json
from zephon.launch.backends.kubernetes.errors import (
    ClusterError,
    Forbidden,
    LogCut,
    NotFound,
    no_api_server,
    no_cluster,
    refusal,
    unreachable,
)

COLLECTIONS = {
    "Job": "/apis/batch/v1/namespaces/{namespace}/jobs",
    "Secret": "/api/v1/namespaces/{namespace}/secrets",
    "ConfigMap": "/api/v1/namespaces/{namespace}/configmaps",
    "Service": "/api/v1/namespaces/{namespace}/services",
    "Deployment": "/apis/apps/v1/namespaces/{namespace}/deployments",
    "Pod": "/api/v1/namespaces/{namespace}/pods",
    "ResourceQuota": "/api/v1/namespaces/{namespace}/resourcequotas",
    "Event": "/api/v1/namespaces/{namespace}/events",
    "LocalQueue": "/apis/kueue.x-k8s.io/{kueue}/namespaces/{namespace}/localqueues",
    "Workload": "/apis/kueue.x-k8s.io/{kueue}/namespaces/{namespace}/workloads",
    "WorkloadPriorityClass": "/apis/kueue.x-k8s.io/{kueue}/workloadpriorityclasses",
}
MERGE = "application/merge-patch+json"
_WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)) ")


class Cluster:
    """A connection to one API server; made on the first request."""

    def __init__(
        self, *, kubeconfig: str | None = None, context: str | None = None, timeout_s: float = 30.0, retry_s: float = 60.0
    ) -> None:
        self.kubeconfig, self.context, self.timeout_s, self.retry_s = kubeconfig, context, timeout_s, retry_s
        self._api: Any = None
        self._kueue: str | None = None

    def close(self) -> None:
        if self._api is not None:
            self._api.rest_client.pool_manager.clear()
            self._api = None

    @property
    def server(self) -> str:
        return str(self._client().configuration.host)

    def identity(self, namespace: str) -> str:
        """Tells this cluster from every other, whatever its address: a hash of its own CA, which each namespace has.

        Empty where it cannot be read.
        """
        try:
            found = self.get("ConfigMap", namespace, "kube-root-ca.crt")
        except (NotFound, Forbidden):
            return ""
        return hashlib.sha256(str((found.get("data") or {}).get("ca.crt")).encode()).hexdigest()[:16]

    def create(self, document: Json, *, dry_run: bool = False, warnings: list[str] | None = None) -> Json:
        """Creates an object; unknown fields in it are errors. With ``dry_run`` everything is checked and nothing kept.

        Args:
            warnings: gets what the API server says beside its answer, such as a violation of pod security.
        """
        metadata = document["metadata"]
        query = [("fieldValidation", "Strict"), *([("dryRun", "All")] if dry_run else [])]
        return self.request(
            "POST",
            self._path(document["kind"], metadata["namespace"]),
            query=query,
            body=document,
            warnings=warnings,
            action=f"create {document['kind']} {metadata['namespace']}/{metadata['name']}",
        )

    def get(self, kind: str, namespace: str, name: str) -> Json:
        return self.request("GET", self._path(kind, namespace, name), action=f"read {kind} {namespace}/{name}")

    def find(self, kind: str, namespace: str, *, labels: str = "", fields: str = "") -> list[Json]:
        query = [(key, value) for key, value in (("labelSelector", labels), ("fieldSelector", fields)) if value]
        answer = self.request("GET", self._path(kind, namespace), query=query, action=f"list {kind}s in {namespace}")
        items: list[Json] = answer.get("items") or []
        return items

    def patch(self, kind: str, namespace: str, name: str, change: Json) -> Json:
        """A merge patch; with ``metadata.resourceVersion`` in it, refused if the object has changed since."""
        action = f"change {kind} {namespace}/{name}"
        return self.request("PATCH", self._path(kind, namespace, name), body=change, content_type=MERGE, action=action)

    def delete(self, kind: str, namespace: str, name: str) -> Json:
        """Deletes an object and, in the foreground, what it owns."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"}
        return self.request("DELETE", self._path(kind, namespace, name), body=body, action=f"delete {kind} {namespace}/{name}")

    def log_lines(
        self, namespace: str, pod: str, *, follow: bool, previous: bool = False, since: str = ""
    ) -> Iterator[tuple[str, str]]:
        """(time stamp, line with its newline) of one container's log; while following, ends with the container.

        Args:
            since: a time stamp of the log; lines of that very second come again.
        Raises:
            LogCut: the connection ended in the middle, or nothing came for ``timeout_s`` seconds.
        """
        from urllib3.exceptions import HTTPError

        query = [("container", "main"), ("follow", str(follow).lower()), ("previous", str(previous).lower())]
        query += [("timestamps", "true"), *([("sinceTime", since)] if since else [])]
        response = self._respond(
            "GET",
            f"{self._path('Pod', namespace, pod)}/log",
            query=query,
            body=None,
            content_type=None,
            action=f"read the log of pod {namespace}/{pod}",
            timeout=(self.timeout_s, self.timeout_s),
        )
        pending = b""
        try:
            for block in response.stream(65536, decode_content=False):
                *lines, pending = (pending + block).split(b"\n")
                for line in lines:
                    yield _stamped(line + b"\n")
        except HTTPError as error:
            raise LogCut(
                f"the log of pod {namespace}/{pod} was cut off: {error}",
                follows="lines would be missing",
                remedy="read it again",
            ) from None
        finally:
            response.close()
        if pending and not follow:  # a follower reads a last line again, when the container is over
            yield _stamped(pending)

    def request(
        self,
        method: str,
        path: str,
        *,
        action: str,
        query: list[tuple[str, str]] | None = None,
        body: Json | None = None,
        content_type: str | None = None,
        warnings: list[str] | None = None,
    ) -> Json:
        """One request, repeated while that can help.

        Raises:
            ClusterError: refused, or no answer within ``retry_s``.
        """
        response = self._respond(method, path, query=query or [], body=body, content_type=content_type, action=action)
        answer = _json(response.data)
        if warnings is not None:
            warnings += [text.replace('\\"', '"') for text in _WARNING.findall(response.headers.get("Warning", ""))]
        if answer is None:
            raise no_api_server(self.server, response.status, response.data.decode(errors="replace"))
        return answer

    def _respond(
        self,
        method: str,
        path: str,
        *,
        query: list[tuple[str, str]],
        body: Json | None,
        content_type: str | None,
        action: str,
        timeout: Any = None,
    ) -> Any:
        """The raw response to a request that succeeded."""
        from urllib3.exceptions import HTTPError

        deadline, pause, renewed = time.monotonic() + self.retry_s, 0.2, False
        while True:
            problem: str
            try:
                response = self._send(method, path, query, body, content_type, timeout or self.timeout_s)
            except HTTPError as error:
                problem = str(getattr(error, "reason", None) or error)
            else:
                if response.status < 300:
                    return response
                answer = _json(response.data)
                if answer is None and response.status not in (502, 503, 504):
                    raise no_api_server(self.server, response.status, response.data.decode(errors="replace"))
                answer = answer or {"message": f"HTTP {response.status} from a proxy in front of it"}
                if response.status == 401 and not renewed:
                    renewed = True
                    self.close()
                    continue
                if not _may_pass(response.status, answer):
                    raise refusal(response.status, answer, action=action)
                problem, refused = "", refusal(response.status, answer, action=action)
            if time.monotonic() + pause > deadline:
                if not problem:
                    raise refused
                raise unreachable(self.server, problem, seconds=self.retry_s)
            time.sleep(pause)
            pause = min(pause * 2, 5.0)

    def _send(
        self, method: str, path: str, query: list[tuple[str, str]], body: Any, content_type: str | None, timeout: Any
    ) -> Any:
        api = self._client()
        headers = {"Accept": "application/json, */*", "Content-Type": content_type or "application/json"}
        method, url, headers, body, _ = api.param_serialize(
            method, path, query_params=query, header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        text = None if body is None else json.dumps(body).encode()
        from urllib3 import Timeout

        bound = Timeout(connect=timeout[0], read=timeout[1]) if isinstance(timeout, tuple) else Timeout(total=timeout)
        pool = api.rest_client.pool_manager
        response = pool.request(method, url, body=text, headers=headers, timeout=bound, retries=False, preload_content=False)
        if response.status >= 300:
            response.read(cache_content=True)
        return response

    def kueue_version(self) -> str | None:
        """The API version of Kueue that this cluster prefers; None when it has no Kueue."""
        if self._kueue is None:
            try:
                group = self.request("GET", "/apis/kueue.x-k8s.io", action="look for Kueue")
            except NotFound:
                return None
            self._kueue = str(group["preferredVersion"]["version"])
        return self._kueue

    def _path(self, kind: str, namespace: str, name: str | None = None) -> str:
        pattern = COLLECTIONS[kind]
        kueue = self.kueue_version() or "v1beta1" if "{kueue}" in pattern else ""
        collection = pattern.format(namespace=namespace, kueue=kueue)
        return collection if name is None else f"{collection}/{name}"

    def _client(self) -> Any:
        if self._api is None:
            import os

            from kubernetes import client, config

            configuration = client.Configuration()
            try:
                asked = self.kubeconfig or self.context or os.environ.get("KUBECONFIG")
                if not asked and "KUBERNETES_SERVICE_HOST" in os.environ:
                    config.load_incluster_config(client_configuration=configuration)
                else:
                    config.load_kube_config(
                        config_file=self.kubeconfig,
                        context=self.context,
                        client_configuration=configuration,
                        persist_config=False,
                    )
            except (config.ConfigException, OSError) as error:
                raise no_cluster(str(error), context=self.context) from None
            self._api = client.ApiClient(configuration=configuration)
        return self._api


def _stamped(line: bytes) -> tuple[str, str]:
    """A line of a log with its time stamp taken off."""
    text = line.decode(errors="replace")
    found = _STAMP.match(text)
    return (found[1], text[found.end() :]) if found else ("", text)


def _json(data: bytes) -> Json | None:
    """The answer; None where it is not what an API server sends."""
    text = data.strip()
    if text and not text.startswith((b"{", b"<", b"[")):  # "404 page not found" and the like are the API server's too
        return {"message": text.decode(errors="replace")[:500]}
    try:
        answer = json.loads(text or b"{}")
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _may_pass(status: int, answer: Json) -> bool:
    """Whether the same request may succeed a little later."""
    passing = ("failed calling webhook", "etcdserver:", "storage is (re)initializing")
    told = str(answer.get("message"))
    return status in (429, 502, 503, 504) or (status == 500 and any(words in told for words in passing))


__all__ = ["Cluster", "ClusterError"]
