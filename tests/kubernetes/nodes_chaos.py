"""A run of the real trainer on real nodes, as the events of tests/chaos.py disturb it: in containers, with Jobs and an API."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

from tests.chaos import SETTINGS
from tests.kubernetes.conftest import until
from tests.kubernetes.machines import TRAINS_S, Machines, events
from zephon.launch import control
from zephon.launch import start as session
from zephon.launch.status import RunStatus, status_of

INDEX = "batch.kubernetes.io/job-completion-index"
# The brackets keep the shell that looks from finding itself.
AGENT = "agent=$(pgrep -f 'zephon[.]agent' | head -1)"
SLOW = ("elastic.drain_s=20",)


class OnNodes:
    """See ``tests.chaos.Disturbed``."""

    sizes = (1, 2)

    def __init__(self, machines: Machines, name: str) -> None:
        self.machines, self.name = machines, name
        settings = [word for word in SETTINGS if not word.startswith("name=")]
        volumes = {"runs": {"mount": str(machines.small), "host_path": str(machines.small)}}
        self.spec = machines.spec(name, *settings, *SLOW, runs=machines.small, volumes=volumes, grace_s=25)
        self.rundir = session.rundir_of(self.spec)

    def start(self) -> None:
        with everybody_may_write():
            session.start(self.spec)

    def resume(self, *overrides: str) -> None:
        with everybody_may_write():
            session.resume(self.rundir, overrides)

    def status(self) -> RunStatus:
        return status_of(self.rundir)

    def wait(self, test: Callable[[RunStatus], bool], limit_s: float = 60.0) -> RunStatus:
        try:
            return control.wait_for(self.rundir, test, limit_s + TRAINS_S, "in a test")  # containers start meanwhile
        except Exception as error:
            error.add_note(self.story())
            raise

    def settled(self) -> None:
        """A node that ended is replaced after a pause that grows: the others train on, and are struck meanwhile."""
        self.wait(lambda now: now.state == "TRAINING" or (now.state == "DEGRADED" and now.nodes > 0))

    def node(self, chance: random.Random) -> int:
        running = until("a node runs", self._running, TRAINS_S)
        return chance.choice(sorted(running))

    def kill_agent(self, index: int) -> None:
        self._shell(index, f"{AGENT}; kill -9 $agent")

    def drain_agent(self, index: int) -> None:
        pod = self._running().get(index)
        self.machines.kubectl("delete", "pod", pod or "none", "-n", self.name, "--wait=false", check=False)

    def kill_workers(self, index: int) -> None:
        self._shell(index, f"{AGENT}; kill -9 $(pgrep -P $(pgrep -P $agent | head -1))")

    def freeze(self, index: int, seconds: float) -> None:
        found = "$(pgrep -f 'zephon[.]agent')"
        self._shell(index, f"all={found}; kill -STOP $all; sleep {seconds:.2f}; kill -CONT $all")

    def kill_everything(self) -> None:
        for index in self._running():
            self._shell(index, "kill -9 $(pgrep -f 'zephon[.]agent')")
        jobs = ("delete", "job", "--all", "-n", self.name, "--cascade=background", "--wait=false")
        self.machines.kubectl(*jobs)
        self.wait(lambda now: now.state == "GONE")
        until(
            "nothing of it lives",
            lambda: self.machines.kubectl("get", "pods", "-n", self.name),
            TRAINS_S,
            holds=lambda s: not s,
        )

    @contextlib.contextmanager
    def api_away(self) -> Iterator[None]:
        self.machines.tool("daemon-stop", "control", "apiserver", "--signal", "9")
        try:
            yield
        finally:
            self.machines.tool("daemon-start", "control", "apiserver")
            until("it answers", lambda: "ok" in self.machines.kubectl("get", "--raw", "/readyz", check=False), TRAINS_S)

    def story(self) -> str:
        told = [str(event) for event in events(self.machines.small, self.name)[-60:]]
        return "\n".join([*told, self.machines.kubectl("get", "jobs,pods", "-n", self.name, "-o", "wide", check=False)])

    def end(self) -> None:
        jobs = ("delete", "job", "--all", "-n", self.name, "--cascade=foreground", "--wait=false")
        self.machines.kubectl(*jobs, check=False)

    def _running(self) -> dict[int, str]:
        """Names of the pods that run and are not on their way out, by index."""

        def stays(pod: dict[str, Any]) -> bool:
            return pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")

        pods = [pod["metadata"] for pod in self.machines.pods(self.name) if stays(pod)]
        return {int(metadata["labels"][INDEX]): metadata["name"] for metadata in pods}

    def _shell(self, index: int, command: str) -> None:
        pod = self._running().get(index)
        self.machines.kubectl("exec", pod or "none", "-n", self.name, "--", "/usr/bin/sh", "-c", command, check=False)


@contextlib.contextmanager
def everybody_may_write() -> Iterator[None]:
    """The launcher of a test is root and the pods are not: what it makes meanwhile is theirs too."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)
