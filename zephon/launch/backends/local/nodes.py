"""The nodes of a local attempt: agent processes, started, watched, replaced when they die or freeze, and ended."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import time
from pathlib import Path

from zephon.agent.fork_messages import Start
from zephon.agent.forkserver import ForkServer
from zephon.agent.messages import Finish
from zephon.agent.training import Training
from zephon.exits import Exit
from zephon.launch.backends.local.gpus import gpus_of_node
from zephon.launch.backends.local.processes import end_session
from zephon.run.events import EventLog
from zephon.run.supervisor_files import LocalRequest
from zephon.spec.experiment import RunSpec

_KILL_MARGIN_S = 10.0
_QUICK_S = 3.0
_FROZEN_HEARTBEATS = 4.0
_MAX_QUICK = 3


@dataclasses.dataclass
class NodeProcess:
    """One node's agent process."""

    index: int
    incarnation: int
    handle: int
    started: float
    stopping: bool = False
    last_seen: float | None = None

    @property
    def name(self) -> str:
        return f"node-{self.index}@{self.incarnation}"


class Nodes:
    """Keeps ``target`` nodes alive from ``begin`` to ``end``; ``watch`` must be called often in between.

    Args:
        request: what was submitted: arguments, environment and GPUs of each node.
        logs: directory of the agents' logs.
    """

    def __init__(self, request: LocalRequest, spec: RunSpec, events: EventLog, logs: Path) -> None:
        self.request, self.spec, self.events, self.logs = request, spec, events, logs
        self.target = request.nodes
        self.stopping = self.at_once = False
        self._there: dict[int, NodeProcess] = {}
        self._incarnations: dict[int, int] = {}
        self._quick = 0
        self._kill_at: float | None = None
        self._server: ForkServer
        self._training: Training

    def __len__(self) -> int:
        return len(self._there)

    def begin(self, server: ForkServer, training: Training) -> None:
        """Starts all nodes as children of ``server``; they find ``training`` at its port."""
        self._server, self._training = server, training
        for index in range(self.target):
            if not self.stopping:
                self._start(index)

    def pids(self) -> dict[str, int | None]:
        """Process by node, None where it has not been forked yet."""
        return {node.name: self._server.pids.get(node.handle) for node in self._there.values()}

    def stop(self, *, at_once: bool) -> None:
        """Asks every agent to drain and leave; ``watch`` kills those that have not left in time.

        Args:
            at_once: nothing trains, so there is nothing to wait for: ``end`` kills what has not left.
        """
        self.stopping, self.at_once = True, at_once
        self._kill_at = time.monotonic() + self.spec.elastic.drain_s + _KILL_MARGIN_S
        for node in self._there.values():
            self._leave(node)

    def resize(self, target: int) -> None:
        """Starts missing nodes and asks surplus nodes to leave."""
        self.target = target
        for index in range(target):
            if index not in self._there:
                self._start(index)
        for index in [i for i in self._there if i >= target]:
            self._leave(self._there[index])

    def watch(self) -> None:
        """Replaces nodes that have ended or are frozen, and kills those that have not left after a stop."""
        self._server.poll()
        for index, node in list(self._there.items()):
            if node.handle not in self._server.exits:
                continue
            status, _ = self._server.exits[node.handle]
            del self._there[index]
            end_session(self._server.pids.get(node.handle, 0))
            self.events.write("node_exited", node=node.name, status=status)
            # Also a node that was asked to leave: the target may have grown again meanwhile.
            if index < self.target and not self.stopping and not self._training.membership.finished:
                self._replace(node, status)
        self._kill_frozen()
        if self._kill_at is not None and time.monotonic() > self._kill_at:
            for node in self._there.values():
                self._server.kill(node.handle, signal.SIGKILL)

    async def end(self) -> None:
        """Waits briefly for nodes that leave by themselves; then kills the others, with all that they started."""
        deadline = time.monotonic() + (0.5 if self.stopping else 15.0)
        while self._there and time.monotonic() < deadline:
            self.watch()
            await asyncio.sleep(0.02)
        for node in self._there.values():
            self._server.kill(node.handle, signal.SIGKILL)
            end_session(self._server.pids.get(node.handle, 0))

    def _leave(self, node: NodeProcess) -> None:
        node.stopping = True
        self._server.kill(node.handle, signal.SIGTERM)

    def _start(self, index: int) -> None:
        incarnation = self._incarnations.get(index, 0) + 1
        self._incarnations[index] = incarnation
        name = f"node-{index}"
        env: dict[str, str | None] = {
            key: value.replace("${replica_id}", str(index)) for key, value in self.request.env.items()
        }
        env |= {"ZEPHON_NODE": f"{name}@{incarnation}", "ZEPHON_ENDPOINT": f"127.0.0.1:{self._training.port}"}
        env |= {"ZEPHON_APP_ID": self.request.app_id}
        if self.request.gpus:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(gpus_of_node(self.request.gpus, index, self.spec.elastic.procs_per_node))
        env |= {"ZEPHON_LOGS": str(self.logs)}
        log = str(self.logs / name / "agent.log")
        process = Start(module="zephon.agent", argv=self.request.args, env=env, log=log, session=True)
        handle = self._server.start(process)
        self._there[index] = NodeProcess(index, incarnation, handle, time.monotonic())
        self.events.write("node_started", node=self._there[index].name)

    def _replace(self, node: NodeProcess, status: int) -> None:
        # A node that was asked to leave (143) or was killed is able to run.
        quick = status >= 0 and status != Exit.LEFT and time.monotonic() - node.started < _QUICK_S
        self._quick = self._quick + 1 if quick else 0
        if status == Exit.REFUSED or self._quick >= _MAX_QUICK:
            log = self.logs / f"node-{node.index}" / "agent.log"
            cause = f"the agent of node-{node.index} ended with status {status}; see {log}"
            self._training.membership.finished = Finish(status or Exit.FAILED, cause)
            return
        self._start(node.index)

    def _kill_frozen(self) -> None:
        """A node that was there and has been silent for long is frozen: it is killed, and replaced like a dead one."""
        known = self._training.membership.nodes
        for node in self._there.values():
            if node.name in known:
                node.last_seen = time.monotonic()
                continue
            silent = time.monotonic() - node.last_seen if node.last_seen is not None and not node.stopping else 0.0
            if silent > _FROZEN_HEARTBEATS * self.spec.elastic.heartbeat_s:
                self.events.write("node_frozen", node=node.name)
                node.last_seen = None
                self._server.kill(node.handle, signal.SIGKILL)
