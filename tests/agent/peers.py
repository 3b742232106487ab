"""A real coordinator in a thread of the test and what talks to it: links, and whole agents in processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.agent.toy import WORKER, toy_spec
from zephon.agent.coordinator import Coordinator
from zephon.agent.link import Link
from zephon.agent.messages import Assign, Finish
from zephon.agent.training import Training
from zephon.run.directory import RunDir
from zephon.run.events import read_events
from zephon.run.ledger import Ledger
from zephon.run.secret import make_secret
from zephon.run.specs import has_spec, write_spec
from zephon.spec.experiment import StagesSpec

ROOT = Path(__file__).resolve().parents[2]


class Server:
    """A coordinator on its own thread, started and killed like a process."""

    def __init__(
        self,
        rundir: RunDir,
        *,
        nodes: int,
        port: int = 0,
        supervised: bool = True,
        stages: StagesSpec | None = None,
        **elastic: Any,
    ) -> None:
        spec = toy_spec(Path(rundir.root).parent, nodes=nodes, **{"heartbeat_s": 1.0, **elastic})
        self.served: Coordinator | Training
        if stages is not None:
            self.served = Coordinator(rundir, 1, dataclasses.replace(spec, stages=stages), expected=nodes)
            self.training = self.served.training
        else:
            self.training = Training(rundir, 1, spec, **({"target": nodes} if supervised else {"expected": nodes}))
            self.served = self.training
        self.finish: Finish | None = None
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main(port)), daemon=True)
        self._thread.start()
        assert self._started.wait(5)

    async def _main(self, port: int) -> None:
        self._loop = asyncio.get_running_loop()
        await self.served.start("127.0.0.1", port)
        self._task = asyncio.ensure_future(self._run())
        self._started.set()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self.served.close()

    async def _run(self) -> None:
        self.finish = await self.served.run()

    def kill(self) -> None:
        if self._loop is not None and self._task is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(10)
        assert not self._thread.is_alive(), "a coordinator that is asked to end ends"


class Peers:
    """Everything of one test, ended with it."""

    def __init__(self, root: Path) -> None:
        self.rundir = RunDir(str(root / "toy"))
        self.servers: list[Server] = []
        self.links: list[Link] = []
        self.agents: list[psutil.Process] = []

    def serve(self, nodes: int, port: int = 0, **given: Any) -> Server:
        self.servers.append(Server(self.rundir, nodes=nodes, port=port, **given))
        return self.servers[-1]

    def link(self, name: str, port: int, *, timeout_s: float = 10.0) -> Link:
        link = Link(f"127.0.0.1:{port}", name, secret=make_secret(self.rundir, 1), beat_s=0.2, timeout_s=timeout_s)
        link.start()
        self.links.append(link)
        return link

    def agent(self, name: str, port: int, **settings: Any) -> psutil.Process:
        """A whole agent, as on a machine of its own; its workers are the toy's, with these settings."""
        if not has_spec(self.rundir, 1):
            write_spec(self.rundir, 1, self.servers[-1].training.spec)
        command = [sys.executable, "-m", "zephon.agent", "--run", self.rundir.url, "--attempt", "1"]
        command += ["--endpoint", f"127.0.0.1:{port}", "--node", name, "--worker", WORKER]
        env = {**os.environ, "ZEPHON_TOY": json.dumps(settings), "OMP_NUM_THREADS": "1"}
        with open(self.rundir.path("attempts", "0001", f"{name}.log"), "ab") as log:
            started = psutil.Popen(command, env=env, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        self.agents.append(started)
        return started

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event.to_dict() for event in read_events(self.rundir) if event.kind == kind]

    def story(self) -> str:
        """What happened, for a failing test."""
        logs = sorted(Path(self.rundir.path("attempts")).rglob("*.log"))
        told = [f"{path}:\n{path.read_text(errors='replace')[-2000:]}" for path in logs]
        return "\n".join([*(json.dumps(event.to_dict()) for event in read_events(self.rundir)), *told])

    def end(self) -> None:
        for agent in self.agents:
            if agent.is_running():
                agent.kill()  # what it started ends with it
            agent.wait(10)
        for link in self.links:
            link.close()
        for server in self.servers:
            server.kill()


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    made = Peers(tmp_path)
    yield made
    made.end()


def record_end(rundir: RunDir, *, steps: int = 20) -> None:
    """What workers leave that have done the last step of ``toy_spec``."""
    with Ledger(rundir.path("ledger.jsonl")) as ledger:
        ledger.append(step=steps - 1, digest=bytes(32), lanes=[])
    rundir.write_json("checkpoints", f"step-{steps:08d}", "COMPLETE", data={})


def assigned(link: Link, limit_s: float = 5.0) -> Assign:
    found = link.wait_assignment(limit_s, threading.Event())
    assert found is not None, "no assignment"
    return found


def until(test: Callable[[], Any], limit_s: float = 5.0, story: Callable[[], str] | None = None) -> None:
    deadline = time.monotonic() + limit_s
    while not test():
        assert time.monotonic() < deadline, story() if story else "the condition did not come true"
        time.sleep(0.01)
