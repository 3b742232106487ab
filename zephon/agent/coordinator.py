"""The coordinator: agents' connections on one side, the membership state machine on the other.

    agent -> {"hello", node, pid, generation}  {"ready", store}  {"beat"}  {"leaving"}  {"exited", generation, exits, error}
    agent <- {"assign", generation, rank, nodes, store}  {"regroup", generation, reason, drain}
             {"release"}  {"finish", status, cause}          (and for other stages than training: agent/turns.py)

JSON lines over TCP. A closed connection is a gone node, so that a killed agent is noticed at once; silence for two
heartbeats is one too. Every decision is written to the run's events. It imports no torch: it starts in a tenth of a
second and may be killed and started again, because agents reconnect and say where they stand.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any

from zephon.agent.entry import bring_spec
from zephon.agent.membership import Action, Assign, Finish, Membership, Regroup, Release, Rules
from zephon.agent.resizes import Resizes
from zephon.errors import ZephonError
from zephon.run.checkpoints import newest_checkpoint
from zephon.run.directory import RunDir
from zephon.run.events import EventLog
from zephon.run.generation import Generation, read_generation, write_generation
from zephon.run.progress import Progress, read_progress
from zephon.run.stop import read_stop
from zephon.run.target import read_target
from zephon.spec.experiment import RunSpec
from zephon.world import World

TICK_S = 0.05
POLL_S = 0.5
_MAX_LINE = 1 << 16
_FIRST_STEP_FACTOR = 3.0


def rules_of(spec: RunSpec) -> Rules:
    """The membership rules of one experiment."""
    return Rules(
        minimum=spec.elastic.nodes_min,
        maximum=spec.elastic.nodes_max,
        allowed=allowed_nodes(spec),
        budget=spec.elastic.failure_budget,
        heartbeat_s=spec.elastic.heartbeat_s,
        drain_s=spec.elastic.drain_s,
        join_timeout_s=spec.elastic.join_timeout_s,
    )


def allowed_nodes(spec: RunSpec) -> Callable[[int], bool]:
    """Whether a number of nodes divides the lanes and the global batch as ``lanes.allow`` permits."""
    allowed = frozenset(World(spec.lanes.count, spec.global_batch_size, 1, spec.lanes.allow).allowed())
    procs, tensor = spec.elastic.procs_per_node, spec.trainer.tensor_parallel

    def test(nodes: int) -> bool:
        return nodes * procs % tensor == 0 and nodes * procs // tensor in allowed

    return test


class Coordinator:
    """Serves one attempt. ``run`` returns the job's exit status.

    Args:
        rundir: the run directory, for events, the newest generation and progress.
        attempt: number of this start.
        spec: the attempt's resolved spec.
        target: never more nodes than this (None: whoever comes).
        expected: how many nodes the first generation waits for, and the first one after everybody has left.
    """

    def __init__(
        self, rundir: RunDir, attempt: int, spec: RunSpec, *, target: int | None = None, expected: int | None = None
    ) -> None:
        self.rundir, self.attempt, self.spec, self.expected = rundir, attempt, spec, expected
        self.events = EventLog(rundir, attempt, "coordinator")
        known = read_generation(rundir)
        now = time.monotonic()
        self.membership = Membership(
            rules_of(spec), target=target, expected=expected, generation=known.generation if known else 0, now=now
        )
        if known is not None and known.attempt == attempt:
            self.membership.adopt(known.nodes, now)
        self.resizes = Resizes()
        self._stops = read_stop(rundir, attempt)
        self._mark: tuple[int, int | None] = (-1, None)
        self._marked, self._first_step = now, True
        self.last_resize: dict[str, Any] | None = None
        self.port = 0
        self._links: dict[str, asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> None:
        """Begins to listen; ``port`` 0 takes a free one and sets ``self.port``."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=_MAX_LINE)
        self.port = self._server.sockets[0].getsockname()[1]

    async def run(self) -> Finish:
        """Decides until the job ends; then tells every agent and closes."""
        polled = 0.0
        while self.membership.finished is None:
            now = time.monotonic()
            if now - polled >= (TICK_S if self.resizes.settling else POLL_S):
                polled = now
                self._read_progress()
            for action in self.membership.decide(now):
                self._act(action)
            await asyncio.sleep(TICK_S)
        finished = self.membership.finished
        assert finished is not None
        return finished

    async def close(self) -> None:
        """Stops listening and drops all connections."""
        for writer in list(self._links.values()):
            with contextlib.suppress(ConnectionError, asyncio.TimeoutError):
                await asyncio.wait_for(writer.drain(), 1.0)
            writer.close()
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = ""
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if message["kind"] == "hello":
                    name = message["node"]
                    previous, self._links[name] = self._links.get(name), writer
                    if previous is not None:
                        previous.close()
                        if message.get("generation") != self.membership.generation:
                            self.membership.gone(name, time.monotonic())
                self._heard(name, message)
        except (ConnectionError, ValueError, KeyError, TypeError) as error:
            self.events.write("bad_connection", node=name, error=f"{type(error).__name__}: {error}")
        except asyncio.CancelledError:
            pass  # the loop ends; a handler that stays cancelled is reported as an error by asyncio
        finally:
            writer.close()
            if name and self._links.get(name) is writer:
                del self._links[name]
                self.membership.gone(name, time.monotonic())
                self.events.write("node_gone", node=name)

    def _heard(self, name: str, message: dict[str, Any]) -> None:
        now, kind, members = time.monotonic(), message["kind"], self.membership
        if kind == "hello":
            generation = message.get("generation")
            if not members.nodes:
                self._gather()
            members.hello(name, now, generation=generation)
            if generation is not None and (generation != members.generation or not members.active or members.regroup):
                # It missed the order to stop while it was away, frozen or cut off.
                self._tell(name, kind="regroup", generation=generation, reason="lost contact", drain=False)
            self.events.write("node_hello", node=name, pid=message.get("pid"), host=message.get("host"))
            if members.finished is not None:  # a lingering coordinator tells latecomers how the job ended
                self._tell(name, kind="finish", status=members.finished.status, cause=members.finished.cause)
        elif kind == "ready":
            members.ready(name, now, store=message["store"])
            self.events.write("node_ready", node=name)
        elif kind == "beat":
            members.beat(name, now)
        elif kind == "leaving":
            members.leaving(name, now)
            self.events.write("node_leaving", node=name)
        elif kind == "exited":
            exits = {int(rank): int(status) for rank, status in message["exits"].items()}
            if message["generation"] == members.generation:
                self.resizes.regroup("workers ended", time.time(), nodes=len(members.members))
                self.resizes.stopped(time.time())
            self._note_progress(read_progress(self.rundir, self.attempt))  # what was saved before the end counts before the end
            members.exited(name, now, generation=message["generation"], exits=exits, error=message.get("error"))
            self.events.write(
                "workers_exited",
                node=name,
                generation=message["generation"],
                exits=message["exits"],
                error=message.get("error"),
            )

    def _gather(self) -> None:
        """A job that starts, or that comes back after a stop, waits for the size that was asked for last."""
        target = read_target(self.rundir, self.attempt)
        self.membership.gather(target.nodes if target else self.expected)
        known, self._stops = self._stops, read_stop(self.rundir, self.attempt)
        # After a stop the time until now is nobody's stall; otherwise the last node was replaced, and training stood still
        # meanwhile. Whoever stops a run on a cluster notes it (the coordinator lives on there); a pause without a note, by
        # the cluster's own tools or in its queue, is told from a replacement by its length alone: a job that gives up after
        # that time has not been resized either.
        stopped = self._stops != known or self.resizes.waited(time.time()) > self.spec.elastic.join_timeout_s
        if stopped:
            self.resizes = Resizes()

    def _act(self, action: Action) -> None:
        if isinstance(action, Assign):
            world = len(action.nodes) * self.spec.elastic.procs_per_node
            formed = Generation(
                attempt=self.attempt, generation=action.number, nodes=action.nodes, world_size=world, time=time.time()
            )
            write_generation(self.rundir, formed)
            self.events.write("generation", generation=action.number, nodes=list(action.nodes), world_size=world)
            self.resizes.formed(
                action.number, time.time(), nodes=len(action.nodes), progress=read_progress(self.rundir, self.attempt)
            )
            for rank, name in enumerate(action.nodes):
                self._tell(
                    name, kind="assign", generation=action.number, rank=rank, nodes=list(action.nodes), store=action.store
                )
        elif isinstance(action, Regroup):
            self.resizes.regroup(action.reason, time.time(), nodes=len(self.membership.members))
            self.events.write("regroup", generation=action.number, reason=action.reason, drain=action.drain)
            for name in self.membership.members:
                self._tell(name, kind="regroup", generation=action.number, reason=action.reason, drain=action.drain)
        elif isinstance(action, Release):
            self._tell(action.node, kind="release")
        else:
            self.events.write("finish", status=action.status, cause=action.cause)
            for name in list(self._links):
                self._tell(name, kind="finish", status=action.status, cause=action.cause)

    def _tell(self, name: str, **message: Any) -> None:
        writer = self._links.get(name)
        if writer is not None and not writer.is_closing():
            writer.write(json.dumps(message).encode() + b"\n")

    def _read_progress(self) -> None:
        progress = read_progress(self.rundir, self.attempt)
        self._watch_stall(self._note_progress(progress))
        if resized := self.resizes.progress(progress):
            self.last_resize = resized
            self.events.write("resized", **resized)

    def _note_progress(self, progress: Progress | None) -> int | None:
        step = progress.step if progress else None
        self.membership.progress(step=step, checkpoint=newest_checkpoint(self.rundir))
        return step

    def _watch_stall(self, step: int | None) -> None:
        """Ends a generation that makes no step; its first step may take longer, for it reads, compiles and measures."""
        now, mark = time.monotonic(), (self.membership.generation, step)
        if mark != self._mark or not self.membership.active:
            fresh = mark[0] != self._mark[0]
            self._mark, self._marked, self._first_step = mark, now, fresh or (self._first_step and not self.membership.active)
        limit = self.spec.elastic.stall_s * (_FIRST_STEP_FACTOR if self._first_step else 1.0)
        if now - self._marked > limit:
            self.membership.stalled(step, now - self._marked, now)


def _staged() -> type[Coordinator]:
    from zephon.agent.turns import StagedCoordinator  # the launcher's rooms, which training alone does not need

    return StagedCoordinator


async def _main(arguments: argparse.Namespace) -> int:
    rundir = RunDir(arguments.run)
    spec = bring_spec(rundir, arguments.attempt)
    made = _staged() if len(spec.stages.order) > 1 else Coordinator
    coordinator = made(rundir, arguments.attempt, spec, expected=arguments.nodes)
    if arguments.linger:
        coordinator.membership.rules = dataclasses.replace(coordinator.membership.rules, join_timeout_s=math.inf)
    await coordinator.start(arguments.host, arguments.port)
    print(f"coordinator of {arguments.run} attempt {arguments.attempt} on {arguments.host}:{coordinator.port}", flush=True)
    finished = await coordinator.run()
    print(f"finished with status {finished.status}: {finished.cause}", flush=True)
    if arguments.linger:
        await asyncio.Event().wait()
    await coordinator.close()
    return finished.status


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m zephon.agent.coordinator", allow_abbrev=False)
    parser.add_argument("--run", required=True, help="URL of the run directory")
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--nodes", type=int, default=None, help="how many nodes the first generation waits for")
    parser.add_argument(
        "--linger",
        action="store_true",
        help="wait for nodes without end and stay after the job has ended, until killed: for a keeper that restarts what exits",
    )
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=29400)
    try:
        return asyncio.run(_main(parser.parse_args(argv)))
    except ZephonError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status


if __name__ == "__main__":
    sys.exit(main())
