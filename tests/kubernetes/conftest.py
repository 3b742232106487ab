"""Real parts for the tests: a control plane that lives for the session, and namespaces in it.

The tools are looked for beside the checkout (``../shared/tools``). Where they are absent the tests that need them are
skipped with that reason; the pure tests always run.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from zephon.launch.backends.kubernetes.client import MERGE, Cluster
from zephon.launch.backends.kubernetes.errors import NotFound

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT.parent / "shared" / "tools"
MACHINES = ("m-1", "m-2")
# No claim of a test, only an end to the wait of one that fails: generous, since a machine may be slow.
WAIT_S = 60.0
T = TypeVar("T")
_numbers = itertools.count(1)


def tool(folder: str, module: str) -> Any:
    """A module of a test tool beside the checkout; skips the test where there is none."""
    directory = TOOLS / folder
    if not (directory / f"{module}.py").exists():
        pytest.skip(f"no ../shared/tools/{folder} beside this checkout: the tests on a real Kubernetes are left out")
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    return importlib.import_module(module)


class Plane:
    """The control plane with what tests ask of it again and again."""

    def __init__(self, plane: Any) -> None:
        self.real = plane
        self.api = Cluster(kubeconfig=self.kubeconfig())

    def kubectl(self, *args: str, user: str = "admin", check: bool = True, stdin: str | None = None) -> str:
        return str(self.real.kubectl(*args, user=user, check=check, stdin=stdin))

    def get(self, kind: str, name: str, namespace: str) -> dict[str, Any]:
        return self.api.get(kind, namespace, name)

    def find(self, namespace: str, *kinds: str, labels: str = "") -> list[dict[str, Any]]:
        return [item for kind in kinds for item in self.api.find(kind, namespace, labels=labels)]

    def apply(self, *documents: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))

    def kubeconfig(self, user: str = "admin") -> str:
        return str(self.real.kubeconfig(user))

    def namespace(self) -> str:
        """A new namespace of its own name."""
        name = f"test-{next(_numbers)}"
        self.kubectl("create", "namespace", name)
        return name

    def machine(self, name: str, *, cpu: str = "1000", memory: str = "4Ti", pods: str = "2000") -> None:
        """A Node object that the scheduler takes for a ready machine. Nothing runs its pods."""
        self.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}})
        size = {"cpu": cpu, "memory": memory, "pods": pods, "ephemeral-storage": "500Gi"}
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "Test",
            "message": "",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        self._patch(f"/api/v1/nodes/{name}/status", {"status": {"capacity": size, "allocatable": size, "conditions": [ready]}})
        node = f"/api/v1/nodes/{name}"
        until(f"{name} has no taint", lambda: not self.api.request("GET", node, action="read node")["spec"].get("taints"), 30)

    def bound(self, namespace: str, count: int) -> list[dict[str, Any]]:
        """Waits until there are so many pods of nodes, none of them on its way out, and each has a machine; returns them."""

        def staying() -> list[dict[str, Any]]:
            pods = self.find(namespace, "Pod", labels="zephon/role=node")
            return [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]

        def machines() -> dict[str, Any]:
            """The machine of each pod, or why it has none."""
            return {
                pod["metadata"]["name"]: pod["spec"].get("nodeName") or pod["status"].get("conditions", []) for pod in staying()
            }

        until(
            f"{count} pods have a machine",
            machines,
            holds=lambda seen: len(seen) == count and all(isinstance(machine, str) for machine in seen.values()),
        )
        return staying()

    def quota(self, namespace: str, hard: dict[str, str]) -> None:
        """A ResourceQuota ``q`` that the API server obeys already: it has begun to refuse accounts, of which it allows none."""
        spec = {"hard": {**hard, "count/serviceaccounts": "0"}}
        self.apply(
            {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": namespace}, "spec": spec}
        )
        probe = ("create", "serviceaccount", "probe", "-n", namespace, "--dry-run=server")
        until("the quota is in force", lambda: self._refusal(*probe), holds=lambda said: "exceeded quota" in said)

    def until_allowed(self, user: str, verb: str, resource: str, namespace: str) -> None:
        """Waits until the API server has seen the user's new role."""
        asked = ("auth", "can-i", verb, resource, "-n", namespace)
        until(
            f"{user} may {verb} {resource}",
            lambda: self.kubectl(*asked, user=user, check=False).strip(),
            holds=lambda answer: answer == "yes",
        )

    def _refusal(self, *args: str) -> str:
        """What kubectl says when the API server refuses; empty where it does not."""
        try:
            self.kubectl(*args)
        except RuntimeError as error:
            return str(error)
        return ""

    @contextlib.contextmanager
    def no_new_pods(self) -> Iterator[None]:
        """Within the block the scheduler places no pod: all machines are cordoned."""
        try:
            for name in MACHINES:
                self._patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True}})
            yield
        finally:
            for name in MACHINES:
                self._patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": None}})

    def _patch(self, path: str, change: dict[str, Any]) -> None:
        self.api.request("PATCH", path, body=change, content_type=MERGE, action="play the kubelet")

    def play_devices(self, machine: str, devices: dict[str, str]) -> None:
        """Says what device plugins would: how many devices of which name a machine has."""
        self._patch(f"/api/v1/nodes/{machine}/status", {"status": {"capacity": devices, "allocatable": devices}})

    def play_kubelet(self, namespace: str, pod: str, *, phase: str, exit_code: int | None = None, reason: str = "Test") -> None:
        """Sets what a kubelet would report of a pod's one container."""
        state: dict[str, Any] = {"running": {"startedAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}}
        if exit_code is not None:
            state = {"terminated": {"exitCode": exit_code, "reason": reason}}
        ready = phase == "Running"
        container = {"name": "main", "image": "i", "imageID": "", "restartCount": 0, "ready": ready, "state": state}
        conditions = [{"type": "Ready", "status": str(ready), "lastTransitionTime": None}]
        change = {"status": {"phase": phase, "containerStatuses": [container], "conditions": conditions}}
        self._patch(f"/api/v1/namespaces/{namespace}/pods/{pod}/status", change)

    def ends_deleted_pods(self, namespace: str) -> None:
        """Confirms deletions as a kubelet does: first the pod's end, then its removal."""
        for pod in self.find(namespace, "Pod"):
            if pod["metadata"].get("deletionTimestamp"):
                name = pod["metadata"]["name"]
                path, now = f"/api/v1/namespaces/{namespace}/pods/{name}", {"gracePeriodSeconds": 0}
                with contextlib.suppress(NotFound):
                    self.play_kubelet(namespace, name, phase="Failed", exit_code=143)
                    self.api.request("DELETE", path, body=now, action="play the kubelet")


def until(what: str, poll: Callable[[], T], seconds: float = WAIT_S, *, holds: Callable[[T], Any] = bool) -> T:
    """Looks until ``holds`` is true of what it sees and returns that; fails with ``what`` and with what it saw last."""
    deadline = time.monotonic() + seconds
    while not holds(seen := poll()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds:.0f} s: {what}; last seen: {seen!r}")
        time.sleep(0.1)
    return seen


def until_said(words: str, read: Callable[[], str], seconds: float = WAIT_S) -> str:
    """Reads a text until these words are in it, and returns it."""
    return until(f"the words {words!r}", read, seconds, holds=lambda text: words in text)


@contextlib.contextmanager
def ended_with_us(*command: str) -> Iterator[None]:
    """Runs a Python command when this process has ended without reaching the end of the block, also by kill -9."""
    wait = "import subprocess, sys; sys.stdin.read(1) or subprocess.run([sys.executable, *sys.argv[1:]], capture_output=True)"
    with subprocess.Popen([sys.executable, "-c", wait, *command], stdin=subprocess.PIPE, start_new_session=True) as guard:
        try:
            yield
        finally:
            assert guard.stdin is not None
            guard.stdin.write(b"x")
            guard.stdin.close()


@contextlib.contextmanager
def started_plane(directory: Path) -> Iterator[Plane]:
    """A control plane with two machines that nobody plays."""
    module = tool("kube", "controlplane")
    # The grace period keeps the Node objects ready although nothing renews their leases.
    extra = {"controllers": ["--node-monitor-grace-period=24h"]}
    with ended_with_us(module.__file__, "down", str(directory)), module.ControlPlane(directory, extra=extra) as real:
        found = Plane(real)
        for name in MACHINES:
            found.machine(name)
        yield found
        found.api.close()


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """One control plane for all tests."""
    with started_plane(tmp_path_factory.mktemp("plane")) as found:
        yield found


@pytest.fixture(scope="module")
def other_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """Another cluster, for tests that need two."""
    with started_plane(tmp_path_factory.mktemp("other")) as found:
        yield found


@pytest.fixture(scope="session")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Three real nodes for all tests that need containers; see machines.py."""
    from tests.kubernetes import machines as real

    found = real.start(tmp_path_factory.mktemp("machines"), nodes=3, life_s=2400)
    with real.ended(found):
        yield found


@pytest.fixture(scope="session")
def power(machines: Any) -> None:
    """For tests that switch machines off, cut their cables or drain them: skipped where the machines are somebody's."""
    if not machines.ours:
        pytest.skip("this test switches machines off, and those of ZEPHON_TEST_KUBECONFIG are not ours")
