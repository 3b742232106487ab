"""Two clusters behind one kubeconfig, and two users on two machines: one attempt at a time, by the clusters' own word."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes.conftest import ROOT, Plane, until
from tests.kubernetes.test_living import OURS, Person
from zephon.errors import ConfigError
from zephon.launch import start as launcher
from zephon.launch.backends.registry import backend, backend_of
from zephon.launch.control import stop

pytestmark = pytest.mark.kubernetes


class Contexts:
    """A kubeconfig with a context for each of two clusters, and a command that changes it."""

    def __init__(self, path: Path, planes: dict[str, Plane]) -> None:
        self.path, self._config = path, dict[str, Any](apiVersion="v1", kind="Config")
        for name, plane in planes.items():
            theirs = yaml.safe_load(Path(plane.kubeconfig()).read_text())
            for kind in ("cluster", "user"):
                self._config.setdefault(f"{kind}s", []).append({"name": name, kind: theirs[f"{kind}s"][0][kind]})
            self._config.setdefault("contexts", []).append({"name": name, "context": {"cluster": name, "user": name}})
        self.use(next(iter(planes)))

    def use(self, name: str) -> None:
        """``kubectl config use-context NAME``, and a new process: this one would go on with its connection."""
        self.path.write_text(yaml.safe_dump({**self._config, "current-context": name}))
        backend.cache_clear()


def test_another_context_is_refused_by_name_and_its_job_of_the_same_name_is_left_alone(
    plane: Plane, other_plane: Plane, tmp_path: Path
) -> None:
    contexts = Contexts(tmp_path / "kubeconfig", {"one": plane, "two": other_plane})
    namespace = plane.namespace()
    other_plane.kubectl("create", "namespace", namespace)
    person = Person(plane, namespace, tmp_path / "runs", kubeconfig=str(contexts.path))
    person.start()
    contexts.use("two")
    somebody = Person(other_plane, namespace, tmp_path / "others", kubeconfig=str(contexts.path))
    somebody.start()
    before = other_plane.find(namespace, "Job", labels=OURS)
    state, message = person.state()
    assert state == "ELSEWHERE"
    for server in (plane.api.server, other_plane.api.server):
        assert server in message
    acts: list[Callable[[], object]] = [
        person.start,
        lambda: launcher.resume(person.rundir),
        lambda: stop(person.rundir),
        lambda: backend_of(person.rundir, 1).rescale(person.rundir, 1, 4),
        lambda: list(backend_of(person.rundir, 1).log_lines(person.rundir, 1, 0, follow=False)),
    ]
    for act in acts:
        with pytest.raises(ConfigError, match=f"the cluster asked is another one, at {other_plane.api.server}"):
            act()
    assert other_plane.find(namespace, "Job", labels=OURS) == before
    contexts.use("one")
    assert person.state()[0] == "STARTING"
    stop(person.rundir, wait_s=0)
    assert [job["spec"]["suspend"] for job in plane.find(namespace, "Job", labels=OURS)] == [True]
    assert [job["spec"]["suspend"] for job in other_plane.find(namespace, "Job", labels=OURS)] == [False]


class Laptop:
    """A user with a home, a folder and a login of their own; the run directory is on a volume that only the pods have."""

    def __init__(self, plane: Plane, namespace: str, user: str, folder: Path) -> None:
        self.folder = folder / user
        for made in ("home", "work"):
            (self.folder / made).mkdir(parents=True)
        home = {"HOME": str(self.folder / "home"), "PYTHONPATH": str(ROOT)}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "KUBE"))}
        self.env = {**kept, **home, "KUBECONFIG": plane.kubeconfig(user)}
        volume = "volumes: {runs: {mount: /volume-of-the-pods, claim: null, empty_dir: 1Gi}}"
        self.words = ["conf=bytes", "name=exp1", "runs=/volume-of-the-pods", "nodes=2", "scheduler=kubernetes"]
        self.words.append(f"scheduler.options={{namespace: {namespace}, {volume}}}")

    @contextlib.contextmanager
    def zephon(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, "-m", "zephon.launch", *words]
        given: dict[str, Any] = {"cwd": self.folder / "work", "env": self.env, "text": True}
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **given) as process:
            try:
                yield process
            finally:
                process.kill()

    def run(self, *words: str) -> tuple[int, str]:
        with self.zephon(*words) as process:
            out, err = process.communicate(timeout=120)
        return process.returncode, out + err


def bind(plane: Plane, namespace: str, *users: str) -> None:
    """Gives users exactly the submitter's role of k8s/base."""
    documents = list(yaml.safe_load_all((ROOT / "k8s/base/rbac.yaml").read_text()))
    for document in documents[:2]:
        document["metadata"]["namespace"] = namespace
        if document["kind"] == "RoleBinding":
            group = "rbac.authorization.k8s.io"
            document["subjects"] = [{"apiGroup": group, "kind": "User", "name": user} for user in users]
        plane.apply(document)
    for user in users:
        plane.until_allowed(user, "create", "jobs.batch", namespace)


def test_of_two_users_on_two_machines_who_start_one_run_at_once_one_does_and_the_other_is_told(
    plane: Plane, tmp_path: Path
) -> None:
    namespace = plane.namespace()
    bind(plane, namespace, "alice", "bob")
    laptops = [Laptop(plane, namespace, user, tmp_path) for user in ("alice", "bob")]
    with contextlib.ExitStack() as stack:
        racing = [stack.enter_context(laptop.zephon("run", *laptop.words)) for laptop in laptops]
        said = [process.communicate(timeout=180) for process in racing]
        codes = [process.returncode for process in racing]
    # Refused at the look for living jobs, or by the cluster where both looked at once.
    assert sorted(codes) in ([0, 65], [0, 1]), said
    (loser,) = (laptop for laptop, code in zip(laptops, codes, strict=True) if code)
    (winner,) = (laptop for laptop, code in zip(laptops, codes, strict=True) if not code)
    refusal = next(err for (_, err), code in zip(said, codes, strict=True) if code)
    assert "still lives in namespace" in refusal or "Job" in refusal.splitlines()[0], refusal
    assert [job["metadata"]["name"] for job in plane.find(namespace, "Job", labels=OURS)] == ["exp1-1"]
    pods = {pod["metadata"]["uid"] for pod in plane.bound(namespace, 2)}

    code, told = loser.run("run", *loser.words)
    assert (code, "still lives in namespace" in told) == (65, True), told
    plane.kubectl("delete", "job", "exp1-1", "-n", namespace, "--cascade=orphan", user="alice")
    code, told = loser.run("run", *loser.words)
    assert (code, "its Job was deleted without its pods" in told) == (65, True), told
    assert {pod["metadata"]["uid"] for pod in plane.bound(namespace, 2)} == pods

    def stopped() -> list[Any]:
        plane.ends_deleted_pods(namespace)
        return plane.find(namespace, "Pod", labels=OURS)

    with winner.zephon("stop", "exp1") as process:
        until("the pods have gone", stopped, holds=lambda left: not left)
        process.communicate(timeout=120)
    code, told = loser.run("run", *loser.words)
    assert code == 0, told
    plane.bound(namespace, 2)
