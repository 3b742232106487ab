"""``zephon run`` on a cluster, in a terminal's foreground: it follows, Ctrl-C leaves, and the end is its end."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.kubernetes.conftest import ROOT, Plane, until, until_said

pytestmark = pytest.mark.kubernetes


class Launcher:
    """The launcher as a process, and its lines as they come."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "XDG_STATE_HOME": str(directory / "state")}
        command = [sys.executable, "-m", "zephon.launch", *arguments]
        # A terminal's child: tests that run in a shell's background would hand down that SIGINT is ignored.
        listener = signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            self.process = subprocess.Popen(
                command, cwd=directory, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        finally:
            signal.signal(signal.SIGINT, listener)
        self.lines: list[str] = []
        self._coming: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._coming.put(line)

    def says(self, words: str) -> str:
        def text() -> str:
            while not self._coming.empty():
                self.lines.append(self._coming.get())
            return "".join(self.lines)

        return next(line for line in until_said(words, text).splitlines() if words in line)

    def ends(self) -> int:
        status = self.process.wait(60)
        self._reader.join(10)
        return status

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self._reader.join(10)
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def arguments(plane: Plane, tmp_path: Path) -> list[str]:
    runs = tmp_path / "runs"
    runs.mkdir()
    options = f"{{namespace: {plane.namespace()}, kubeconfig: {plane.kubeconfig()}}}"
    volume = [f"scheduler.options.volumes.here.mount={runs}", "scheduler.options.volumes.here.empty_dir=1Gi"]
    return ["conf=bytes", f"runs={runs}", "nodes=1", "scheduler=kubernetes", f"scheduler.options={options}", *volume]


def test_run_on_a_cluster_follows_to_the_end_and_ctrl_c_leaves_it_running(
    plane: Plane, arguments: list[str], tmp_path: Path
) -> None:
    namespace = arguments[4].split("namespace: ")[1].split(",")[0]
    first = Launcher(tmp_path, "run", *arguments)
    try:
        assert "0 of 1 nodes run" in first.says("STARTING")
        first.process.send_signal(signal.SIGINT)
        told = first.says("the run goes on")
        assert "zephon status bytes or zephon logs -f bytes; end it with: zephon stop bytes" in told
        assert first.ends() == 130
    finally:
        first.close()
    job = plane.get("Job", "bytes-1", namespace)
    assert job["spec"].get("suspend", False) is False, "nobody has asked the run to stop"

    again = Launcher(tmp_path, "run", *arguments)
    try:
        again.says("running already at nodes=1; following it")
        # Its volume's claim is not there, so no machine ever takes it: to exist is all that it has to do.
        (pod, *_) = until("its pod is made", lambda: plane.find(namespace, "Pod", labels="zephon/role=node"))
        plane.play_kubelet(namespace, pod["metadata"]["name"], phase="Succeeded", exit_code=0)
        again.says("done: ")
        assert again.ends() == 0
    finally:
        again.close()


def test_detached_it_returns_when_all_is_submitted(arguments: list[str], tmp_path: Path) -> None:
    detached = Launcher(tmp_path, "run", *arguments, "-d")
    try:
        assert "status bytes" in detached.says("running in the background")
        assert detached.ends() == 0
    finally:
        detached.close()
