"""A cluster of real nodes for tests, and pods that run this checkout with the host's own Python.

The image ``kit.test/host:1`` holds no program: the host's ``/usr``, the Python installation, the virtual environment and the
checkout are mounted into it read-only, through the product's own overlay.

With ``ZEPHON_TEST_KUBECONFIG`` the tests use that cluster and start none (docs/kubernetes.md says what it must offer);
those that switch machines off are skipped there, for they are somebody's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.conftest import ROOT, TOOLS, ended_with_us, until
from zephon.launch import start as session
from zephon.launch.backends.kubernetes.client import Cluster
from zephon.launch.config.compose import compose
from zephon.launch.status import RunStatus, status_of
from zephon.run.directory import RunDir
from zephon.spec.experiment import RunSpec, SchedulerSpec

GIVEN, IMAGE, RUNS = "ZEPHON_TEST_KUBECONFIG", "ZEPHON_TEST_IMAGE", "ZEPHON_TEST_RUNS"
# An end to the wait for containers that start, find each other and train; no claim of a test.
TRAINS_S = 180.0
TOOL = TOOLS / "cluster" / "node.py"
NEEDED = {"runc": "runc", "bridge": "containernetworking-plugins", "busybox": "busybox-static", "zstd": "zstd"}


def missing() -> str | None:
    """Why no cluster can run here, or None."""
    if not TOOL.exists():
        return "no ../shared/tools/cluster beside this checkout: the tests on real nodes are left out"
    if os.geteuid() != 0:
        return "the tests on real nodes need root"
    places = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/lib/cni", "/opt/cni/bin"])
    absent = sorted(package for program, package in NEEDED.items() if not shutil.which(program, path=places))
    if absent:
        return f"the tests on real nodes need the Debian packages {' '.join(absent)}"
    return None


class Machines:
    """What the tests ask of a cluster, whoever owns it."""

    ours = True
    image, pull_policy = "kit.test/host:1", "Never"
    api: Cluster
    runs: Path
    disk: Path | None = None
    """a disk of 64 MiB that a test may fill"""

    @property
    def small(self) -> Path:
        """Where runs on the small disk are; on the other one where there is none."""
        return self.disk or self.runs

    @property
    def kubeconfig(self) -> str:
        raise NotImplementedError

    def kubectl(self, *args: str, check: bool = True) -> str:
        raise NotImplementedError

    def tool(self, *args: str, check: bool = True) -> str:
        """Changes a machine: switches it off, stops a daemon, pulls a cable. Only where the machines are ours."""
        raise NotImplementedError

    def down(self) -> None:
        raise NotImplementedError

    def name(self, base: str) -> str:
        """A name for a run and its namespace that is free on this cluster."""
        return base

    def open_runs(self) -> None:
        self.runs.mkdir(parents=True, exist_ok=True)
        self.runs.chmod(0o777)  # the pods are not root

    def pods(self, namespace: str, role: str = "node") -> list[dict[str, Any]]:
        """The pods of one role by name, without those that are over."""
        found = self.api.find("Pod", namespace, labels=f"zephon/role={role}")
        return [pod for pod in found if pod.get("status", {}).get("phase") in ("Pending", "Running")]

    def uids(self, name: str) -> dict[int, str]:
        """UIDs of the nodes' pods that are not over, by index."""
        index = "batch.kubernetes.io/job-completion-index"
        return {int(pod["metadata"]["labels"][index]): pod["metadata"]["uid"] for pod in self.pods(name)}

    def spec(self, name: str, *overrides: str, runs: Path | None = None, **options: Any) -> RunSpec:
        """An experiment whose run and namespace have this name."""
        self.kubectl("create", "namespace", name)
        spec = compose([f"name={name}", f"runs={runs or self.runs}", *overrides]).spec
        return dataclasses.replace(spec, scheduler=SchedulerSpec(name="kubernetes", options=self.options(name, **options)))

    def submit(self, spec: RunSpec, **given: Any) -> RunDir:
        return self.opened(session.start(spec, **given).rundir)

    def opened(self, rundir: RunDir) -> RunDir:
        """A run directory after a start, writable for the pods."""
        for directory, _, files in os.walk(rundir.root):  # made by root here; the pods are not root
            os.chmod(directory, 0o777)
            for file in files:
                os.chmod(Path(directory) / file, 0o666)
        return rundir

    def options(self, namespace: str, *, worker_env: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
        """Scheduler options whose pods run this checkout."""
        return {
            "namespace": namespace,
            "kubeconfig": self.kubeconfig,
            "image": self.image,
            "image_pull_policy": self.pull_policy,
            # The same path inside and outside: the launcher reads the run directory too.
            "volumes": {"runs": {"mount": str(self.runs), "host_path": str(self.runs)}},
            "tmp_size": "1Gi",
            "lost_node_s": 5,
            "env": {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **(worker_env or {})},
            "overlay": host_overlay(unpacks="workspace" in more),
            **more,
        }


class Kit(Machines):
    """Control plane and nodes of our own, from ``up`` to ``down``; ``life_s`` ends them even if the tests are killed."""

    def __init__(self, directory: Path, *, nodes: int, life_s: int) -> None:
        self.directory, self.nodes, self.life_s = directory, nodes, life_s
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.runs = directory / "runs"

    def tool(self, *args: str, check: bool = True) -> str:
        return _run(sys.executable, str(TOOL), "--dir", str(self.directory / "kit"), *args, check=check)

    def up(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.open_runs()
        small = self.directory / "small"
        small.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=64m,mode=777", "tmpfs", str(small)]
        self.disk = None if subprocess.run(mount, capture_output=True).returncode else small
        self.tool("up", "--nodes", str(self.nodes), "--port", str(self.port), "--life", str(self.life_s))
        self.api = Cluster(kubeconfig=self.kubeconfig)

    def down(self) -> None:
        if hasattr(self, "api"):
            self.api.close()
        self.tool("down")
        if self.disk is not None:
            subprocess.run(["umount", "--lazy", str(self.disk)], check=True)

    @functools.cached_property
    def kubeconfig(self) -> str:
        return self.tool("kubeconfig").strip()

    def kubectl(self, *args: str, check: bool = True) -> str:
        return self.tool("kubectl", *args, check=check)


class Given(Machines):
    """Somebody's cluster: only namespaces of our own are made there, and they go with the tests."""

    ours, pull_policy = False, "IfNotPresent"

    def __init__(self, directory: Path, kubeconfig: str) -> None:
        self._kubeconfig, self.image = kubeconfig, os.environ.get(IMAGE, self.image)
        self.runs = Path(os.environ.get(RUNS) or directory / "runs")
        self._suffix, self._made = uuid.uuid4().hex[:5], list[str]()
        self.open_runs()
        self.api = Cluster(kubeconfig=kubeconfig)

    @property
    def kubeconfig(self) -> str:
        return self._kubeconfig

    def kubectl(self, *args: str, check: bool = True) -> str:
        return _run("kubectl", "--kubeconfig", self.kubeconfig, *args, check=check)

    def tool(self, *args: str, check: bool = True) -> str:
        pytest.skip(f"{' '.join(args)}: the machines of {GIVEN} are not ours to change")

    def name(self, base: str) -> str:
        self._made.append(f"{base}-{self._suffix}")
        return self._made[-1]

    def down(self) -> None:
        for name in self._made:
            self.kubectl("delete", "job", "--all", "-n", name, "--cascade=foreground", "--timeout=60s", check=False)
        self.kubectl("delete", "namespace", *self._made, "--ignore-not-found", "--wait=false", check=False)
        self.api.close()


def _run(*command: str, check: bool) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def host_overlay(*, unpacks: bool = False) -> dict[str, Any]:
    """The overlay that lets a pod of an empty image run the host's Python and this checkout; also to unpack a work folder."""
    python = Path(sys.base_prefix).resolve()
    shown = {"usr": Path("/usr"), "checkout": ROOT}
    if not python.is_relative_to("/usr"):
        shown["python"] = python
    if not Path(sys.prefix).resolve().is_relative_to(ROOT):
        shown["venv"] = Path(sys.prefix).resolve()
    for number, entry in enumerate(sys.path):  # packages may lie beside the environment
        place = Path(entry).resolve()
        if place.is_dir() and not any(place.is_relative_to(known) for known in shown.values()):
            shown[f"path-{number}"] = place
    path = f"{Path(sys.prefix) / 'bin'}:/usr/bin:/bin"
    container = {
        "name": "main",
        "env": [{"name": "PATH", "value": path}, {"name": "PYTHONPATH", "value": str(ROOT)}],
        "volumeMounts": [{"name": name, "mountPath": str(where), "readOnly": True} for name, where in shown.items()],
    }
    volumes = [{"name": name, "hostPath": {"path": str(where), "type": "Directory"}} for name, where in shown.items()]
    small = {"name": "main", "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "2Gi"}}}
    first = {"initContainers": [{**container, "name": "code"}]} if unpacks else {}
    return {
        "pods": {"spec": {"containers": [container], "volumes": volumes, **first}},
        "nodes": {"spec": {"containers": [small]}},
    }


def reach(rundir: RunDir, what: str, test: Callable[[RunStatus], Any], seconds: float = TRAINS_S) -> RunStatus:
    """Waits until a run's status passes a test; a run that fails meanwhile ends the wait."""

    def alive() -> RunStatus:
        status = status_of(rundir)
        assert status.state != "FAILED", (status.message, status.error)
        return status

    return until(what, alive, seconds, holds=test)


def until_formed(runs: Path, run: str, after: int, world_size: Callable[[int], bool]) -> dict[str, Any]:
    """Waits for a generation later than ``after`` whose size is right, and returns its event.

    A status shows the present only, and a small generation may have grown again before the test looks; an event stays.
    """

    def generations() -> list[dict[str, Any]]:
        return [event for event in events(runs, run) if event["event"] == "generation" and event["generation"] > after]

    def right(event: dict[str, Any]) -> bool:
        return world_size(event["world_size"])

    found = until(f"a generation after {after}", generations, TRAINS_S, holds=lambda formed: any(map(right, formed)))
    return next(filter(right, found))


def events(runs: Path, run: str) -> list[dict[str, Any]]:
    """The run's events so far."""
    file = runs / run / "events.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def start(directory: Path, *, nodes: int, life_s: int) -> Machines:
    """Machines that are up; skips the test where none can be."""
    if kubeconfig := os.environ.get(GIVEN):
        given = Given(directory, kubeconfig)
        if len(found := given.kubectl("get", "nodes", "-o", "name").split()) < nodes:
            pytest.skip(f"the cluster of {GIVEN} has {len(found)} machines, and the tests need {nodes}")
        return given
    if reason := missing():
        pytest.skip(reason)
    kit = Kit(directory, nodes=nodes, life_s=life_s)
    kit.up()
    return kit


@contextlib.contextmanager
def ended(machines: Machines) -> Iterator[None]:
    """Ends the machines with the block, or with this process."""
    with contextlib.ExitStack() as stack:
        stack.callback(machines.down)
        if isinstance(machines, Kit):
            stack.enter_context(ended_with_us(str(TOOL), "--dir", str(machines.directory / "kit"), "down"))
        yield
