"""Why a pod ended, although nobody asked while it was there: by the watcher, and by what the cluster keeps a little longer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes.conftest import ROOT, Plane, until
from tests.kubernetes.test_living import Person
from zephon.launch.backends.kubernetes.client import Cluster
from zephon.launch.backends.kubernetes.preflight import Right, missing_rights
from zephon.launch.backends.kubernetes.watch import MODULE
from zephon.launch.status import status_of
from zephon.run.events import EventLog, read_events

pytestmark = pytest.mark.kubernetes


@pytest.fixture
def person(plane: Plane, tmp_path: Path) -> Person:
    return Person(plane, plane.namespace(), tmp_path / "runs")


def kubeconfig_of_the_watcher(plane: Plane, namespace: str, folder: Path) -> str:
    """A login as the service account, with exactly the role that is shipped for it."""
    plane.kubectl("create", "serviceaccount", "zephon-job", "-n", namespace)
    for document in yaml.safe_load_all((ROOT / "k8s/components/watch/rbac.yaml").read_text()):
        document["metadata"]["namespace"] = namespace
        for subject in document.get("subjects", ()):
            subject["namespace"] = namespace
        plane.apply(document)
    token = plane.kubectl("create", "token", "zephon-job", "-n", namespace).strip()
    config: dict[str, Any] = yaml.safe_load(Path(plane.kubeconfig()).read_text())
    config["users"] = [{"name": "watcher", "user": {"token": token}}]
    for context in config["contexts"]:
        context["context"]["user"] = "watcher"
    path = folder / "watcher.yaml"
    path.write_text(yaml.safe_dump(config))
    return str(path)


def ended(person: Person) -> list[str]:
    return [str(event.details["cause"]) for event in read_events(person.rundir) if event.kind == "node_ended"]


def test_a_watcher_keeps_the_cause_of_a_pod_that_nobody_asked_about_with_no_other_right(person: Person, tmp_path: Path) -> None:
    person.start()
    (pod, _) = person.plane.bound(person.namespace, 2)
    kubeconfig = kubeconfig_of_the_watcher(person.plane, person.namespace, tmp_path)
    cluster = Cluster(kubeconfig=kubeconfig)
    forbidden = [Right("", "secrets", "get", ""), Right("batch", "jobs", "patch", ""), Right("", "pods", "get", "", "log")]
    asked = [Right("", "pods", "list", ""), *forbidden]
    until("its role is in force", lambda: missing_rights(cluster, person.namespace, asked), holds=lambda no: no == forbidden)
    cluster.close()
    what = ["--run", person.rundir.url, "--attempt", "1", "--job", f"{person.namespace}/exp1-1"]
    watcher = subprocess.Popen([sys.executable, "-m", MODULE, *what], env={**os.environ, "KUBECONFIG": kubeconfig})
    try:
        name = pod["metadata"]["name"]
        person.plane.play_kubelet(person.namespace, name, phase="Failed", exit_code=137, reason="OOMKilled")
        until("the watcher has written it down", lambda: ended(person))
        person.delete("background")
        until("nothing is left", person.ended, holds=lambda left: not left)
        assert watcher.wait(60) == 0, "it ends with the Job"
    finally:
        watcher.kill()
        watcher.wait()
    found = status_of(person.rundir)
    assert found.state == "GONE"
    assert "out of memory: the kernel killed a process of its container" in found.error
    assert len(ended(person)) == 1


def test_a_node_that_went_without_a_word_has_the_causes_that_the_clusters_events_still_know(person: Person) -> None:
    """The coordinator has seen two nodes go; the pods are gone too, and of one of them an event is left."""
    person.start()
    pods = person.plane.bound(person.namespace, 2)
    log = EventLog(person.rundir, 1, "coordinator")
    for pod in pods:
        log.write("node_hello", node=f"{pod['metadata']['name']}@{pod['metadata']['uid']}", pid=1, host="x")
    first, second = (pod["metadata"] for pod in pods)
    event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "evicted", "namespace": person.namespace}}
    what = {"kind": "Pod", "namespace": person.namespace, "name": first["name"], "uid": first["uid"]}
    said = {"reason": "Evicted", "type": "Warning", "message": "The node was low on resource: memory."}
    person.plane.kubectl("create", "-f", "-", stdin=json.dumps({**event, "involvedObject": what, **said}))
    for pod in (first, second):
        log.write("node_gone", node=f"{pod['name']}@{pod['uid']}")
    assert person.state()[0] == "STARTING"
    assert ended(person) == [], "their pods are there"
    person.delete("background")
    until("nothing is left", person.ended, holds=lambda left: not left)
    for _ in range(2):
        person.until_state("GONE")
    assert sorted(ended(person)) == sorted(
        [
            f"pod {first['name']} is gone: Evicted: The node was low on resource: memory.",
            f"pod {second['name']} is gone: nobody looked at it while it was there, and the cluster has no event that says why",
        ]
    )
