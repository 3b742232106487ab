"""The client against a small HTTP server that misbehaves on purpose."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from zephon.errors import ConfigError
from zephon.launch.backends.kubernetes.client import Cluster
from zephon.launch.backends.kubernetes.errors import ClusterError, Conflict, Forbidden, NoAnswer, Unavailable
from zephon.launch.backends.kubernetes.logs import node_log
from zephon.launch.backends.kubernetes.options import options_from
from zephon.launch.backends.kubernetes.queue import check_queue
from zephon.launch.backends.kubernetes.submit import create_once

Answer = tuple[int, dict[str, Any] | str] | None  # None: the connection is cut


@contextmanager
def server(answer: Callable[[str, str, str], Answer]) -> Iterator[str]:
    """Answers every request by ``answer(method, path, token)``; None cuts the connection without an answer."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            found = answer(self.command, self.path, self.headers.get("Authorization") or "")
            if found is None:
                self.close_connection = True
                self.connection.shutdown(2)
                return
            body = found[1].encode() if isinstance(found[1], str) else json.dumps(found[1]).encode()
            self.send_response(found[0])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PATCH = do_DELETE = handle_one

        def log_message(self, format: str, *args: Any) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_address[1]}"
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()


def kubeconfig(path: Path, url: str, user: dict[str, Any]) -> str:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    path.write_text(json.dumps(config))
    return str(path)


def test_a_replaced_token_is_read_again_on_the_first_401(tmp_path: Path) -> None:
    token, seen = tmp_path / "token", []
    token.write_text("old")

    def answer(method: str, path: str, given: str) -> Answer:
        seen.append(given)
        if len(seen) == 1:
            return 200, {"items": []}
        return (200, {"items": []}) if given.endswith("new") else (401, {"message": "Unauthorized"})

    with server(answer) as url:
        cluster = Cluster(kubeconfig=kubeconfig(tmp_path / "k", url, {"tokenFile": str(token)}), retry_s=5)
        cluster.find("Job", "n")
        token.write_text("new")
        assert cluster.find("Job", "n") == []
        assert [given.split()[-1] for given in seen] == ["old", "old", "new"]
        token.write_text("bad")
        cluster.close()
        with pytest.raises(ClusterError, match="renew the login"):
            cluster.find("Job", "n")
        cluster.close()


def test_a_server_that_restarts_is_waited_for(tmp_path: Path) -> None:
    answers: list[Answer] = [None, (503, {"message": "starting"}), (429, {"message": "busy"}), (200, {"items": [{"a": 1}]})]
    with server(lambda *_: answers.pop(0)) as url:
        cluster = Cluster(kubeconfig=kubeconfig(tmp_path / "k", url, {"token": "t"}), retry_s=10)
        assert cluster.find("Job", "n") == [{"a": 1}]
        cluster.close()


def test_a_webhook_that_is_down_is_waited_for_and_other_500s_are_told(tmp_path: Path) -> None:
    down = 'Internal error occurred: failed calling webhook "vjob.kb.io": connection refused'
    answers: list[Answer] = [(500, {"message": down}), (201, {"kind": "Job"}), (500, {"message": "boom"})]
    document = {"kind": "Job", "metadata": {"namespace": "n", "name": "j"}}
    with server(lambda *_: answers.pop(0)) as url:
        cluster = Cluster(kubeconfig=kubeconfig(tmp_path / "k", url, {"token": "t"}), retry_s=10)
        assert cluster.create(document) == {"kind": "Job"}
        with pytest.raises(ClusterError, match="create Job n/j: boom"):
            cluster.create(document)
        cluster.close()


def test_a_server_that_never_answers_is_given_up_in_bounded_time(tmp_path: Path) -> None:
    with server(lambda *_: None) as url:
        cluster = Cluster(kubeconfig=kubeconfig(tmp_path / "k", url, {"token": "t"}), retry_s=1)
        with pytest.raises(ClusterError, match="did not answer for 1 s"):
            cluster.find("Job", "n")
        cluster.close()


def test_a_page_of_a_proxy_is_no_answer_of_the_cluster_whatever_its_status(tmp_path: Path) -> None:
    page = "<!doctype html><title>Sign in</title>"
    for status in (200, 403, 404):
        with server(lambda *_, status=status: (status, page)) as url:
            cluster = Cluster(kubeconfig=kubeconfig(tmp_path / "k", url, {"token": "t"}), retry_s=1)
            with pytest.raises(NoAnswer, match=rf"is no API server \(HTTP {status}\): 'Sign in'"):
                cluster.find("Job", "n")
            cluster.close()


def test_an_overloaded_or_ailing_server_is_waited_for_and_then_named_as_one_that_answers(tmp_path: Path) -> None:
    for status, message in ((429, "too many requests"), (500, "etcdserver: request timed out"), (503, "<html>x</html>")):
        with server(lambda *_, status=status, message=message: (status, {"message": message})) as url:
            cluster = Cluster(kubeconfig=kubeconfig(tmp_path / "k", url, {"token": "t"}), retry_s=1)
            with pytest.raises(Unavailable, match=f"HTTP {status}"):
                cluster.find("Job", "n")
            cluster.close()


def test_a_refusal_is_not_repeated(tmp_path: Path) -> None:
    seen = []

    def answer(method: str, path: str, given: str) -> Answer:
        seen.append(path)
        return 403, {"message": "no"}

    with server(answer) as url:
        cluster = Cluster(kubeconfig=kubeconfig(tmp_path / "k", url, {"token": "t"}))
        with pytest.raises(Forbidden):
            cluster.find("Job", "n", labels="a=b,c=d")
        cluster.close()
    assert seen == ["/apis/batch/v1/namespaces/n/jobs?labelSelector=a%3Db%2Cc%3Dd"]


def test_no_token_is_ever_part_of_an_error(tmp_path: Path) -> None:
    with server(lambda *_: (401, {"message": "Unauthorized"})) as url:
        cluster = Cluster(kubeconfig=kubeconfig(tmp_path / "k", url, {"token": "hunter2"}), retry_s=1)
        with pytest.raises(ClusterError) as error:
            cluster.find("Job", "n")
        cluster.close()
    assert "hunter2" not in str(error.value)


def test_a_create_whose_answer_was_lost_is_found_again_and_a_strangers_job_is_not_taken(tmp_path: Path) -> None:
    """The first POST is stored, but the connection breaks before the answer."""
    stored: dict[str, dict[str, Any]] = {}
    lose = ["answer"]

    def answer(method: str, path: str, given: str) -> Answer:
        name = path.split("?")[0].rsplit("/", 1)[-1]
        if method == "GET":
            return (200, stored[name]) if name in stored else (404, {"message": "not found"})
        if "j" in stored:
            return 409, {"message": 'jobs.batch "j" already exists'}
        stored["j"] = {"kind": "Job", "metadata": {"name": "j", "annotations": {"zephon/submission": "mine"}}}
        return None if lose.pop() else (201, stored["j"])

    document = {"kind": "Job", "metadata": {"namespace": "n", "name": "j", "annotations": {"zephon/submission": "mine"}}}
    with server(answer) as url:
        cluster = Cluster(kubeconfig=kubeconfig(tmp_path / "k", url, {"token": "t"}), retry_s=5)
        assert create_once(cluster, document) == stored["j"]
        stored["j"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        with pytest.raises(Conflict, match="already exists and is being deleted"):
            create_once(cluster, document)
        stored["j"]["metadata"] = {"name": "j", "annotations": {"zephon/submission": "a stranger's"}}
        with pytest.raises(Conflict, match="Job n/j already exists\n"):
            create_once(cluster, document)
        cluster.close()


JOB = {"metadata": {"name": "j", "namespace": "n", "labels": {"zephon/run-id": "r", "zephon/attempt": "1"}}, "spec": {}}


def logged(state: dict[str, Any], restarts: int = 0) -> dict[str, Any]:
    status = {"name": "main", "state": state, "restartCount": restarts}
    metadata = {"name": "p", "namespace": "n", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": metadata, "status": {"phase": "Running", "containerStatuses": [status]}}


def test_following_the_log_of_a_container_that_is_still_being_created_waits_for_it(tmp_path: Path) -> None:
    asked = []

    def answer(method: str, path: str, given: str) -> Answer:
        if path.startswith("/api/v1/namespaces/n/pods/p/log"):
            return 200, "first words\nlast words\n" if len(asked) < 5 else ""
        if path.endswith("/pods/p"):
            over = logged({"terminated": {"exitCode": 0}})
            asked.append(path)
            return 200, {**over, "status": {**over["status"], "phase": "Succeeded"}}
        if "/pods" in path:
            asked.append(path)
            creating = {"waiting": {"reason": "ContainerCreating"}}
            return 200, {"items": [logged(creating if len(asked) < 4 else {"running": {}})]}
        ended = {"conditions": [{"type": "Complete", "status": "True"}]} if len(asked) > 4 else {}
        return 200, {**JOB, "status": ended}

    with server(answer) as url:
        cluster = Cluster(kubeconfig=kubeconfig(tmp_path / "k", url, {"token": "t"}), retry_s=5)
        lines = list(node_log(cluster, "n", "j", role="node", index=0, follow=True, since=None, poll_s=0.05))
        cluster.close()
    assert lines == ["first words\n", "last words\n"]


def test_the_log_of_a_container_that_was_restarted_begins_with_what_it_said_before(tmp_path: Path) -> None:
    def answer(method: str, path: str, given: str) -> Answer:
        if path.startswith("/api/v1/namespaces/n/pods/p/log"):
            return 200, "the crash\n" if "previous=true" in path else "again\n"
        return 200, {"items": [logged({"running": {}}, restarts=1)]} if "/pods" in path else JOB

    with server(answer) as url:
        cluster = Cluster(kubeconfig=kubeconfig(tmp_path / "k", url, {"token": "t"}), retry_s=5)
        lines = list(node_log(cluster, "n", "j", role="coordinator", index=0, follow=False, since=None))
        cluster.close()
    assert lines == ["the crash\n", "again\n"]


def test_a_queue_on_a_cluster_without_kueue_is_refused_and_says_what_is_missing(tmp_path: Path) -> None:
    with server(lambda *_: (404, {"message": "the server could not find the requested resource"})) as url:
        cluster = Cluster(kubeconfig=kubeconfig(tmp_path / "k", url, {"token": "t"}), retry_s=5)
        with pytest.raises(ConfigError, match=r"this cluster has no Kueue(.|\n)*leave queue out"):
            check_queue(cluster, options_from({"queue": "team"}))
        cluster.close()


def test_a_follower_whose_connection_is_cut_or_ends_early_goes_on_from_the_last_line(tmp_path: Path) -> None:
    """Three connections: the first is cut in the middle of a line, the second ends although the container runs on."""
    log = [f"2026-01-01T00:00:0{n // 4}.00000000{n % 4}Z line {n}\n" for n in range(12)]
    log[5] = log[4].replace("line 4", "line 5")  # two lines of one moment
    connections: list[str] = []

    def answer(method: str, path: str, given: str) -> Answer:
        if "/pods/p/log" in path:
            connections.append(path)
            since = path.partition("sinceTime=")[2].partition("&")[0].replace("%3A", ":")[:19]
            text = "".join(line for line in log[: len(connections) * 4 + 2] if line[:19] >= since)
            return 200, text[:-9] if len(connections) == 1 else text
        over = len(connections) >= 3
        ended = {"conditions": [{"type": "Complete", "status": "True"}]} if over else {}
        shown = logged({"running": {}} if not over else {"terminated": {"exitCode": 0}})
        shown["status"]["phase"] = "Succeeded" if over else "Running"
        if path.partition("?")[0].endswith("/pods/p"):
            return 200, shown
        return 200, {"items": [shown]} if "/pods" in path else {**JOB, "status": ended}

    with server(answer) as url:
        cluster = Cluster(kubeconfig=kubeconfig(tmp_path / "k", url, {"token": "t"}), retry_s=5)
        lines = list(node_log(cluster, "n", "j", role="coordinator", index=0, follow=True, since=None, poll_s=0.01))
        cluster.close()
    assert lines == [f"line {n}\n" for n in range(12)]
