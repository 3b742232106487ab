"""The coordinator of an attempt's training: agents' messages on one side, the membership state machine on the other.

    Server ──messages──► Training ──► Membership ──decisions──► Training ──messages──► Server
                            └── events, generation.json, how long each resize took, a generation that makes no step

A node is gone when its connection closes, so a killed agent is noticed at once, or when it is silent for two heartbeats. Every
decision is written to the run's events. Agents send all that it holds again to a coordinator that is started anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import time
from collections.abc import Mapping
from typing import Any

from zephon.agent.membership import Action, Form, Membership, Release, cause_of
from zephon.agent.messages import (
    Assign,
    Beat,
    Exited,
    Finish,
    FromAgent,
    Hello,
    Leaving,
    Ready,
    Released,
    Rerendezvous,
    Standby,
    WorkerError,
)
from zephon.agent.resizes import Resizes
from zephon.agent.rules import rules_of
from zephon.agent.server import Server
from zephon.errors import Superseded
from zephon.run.checkpoints import newest_checkpoint
from zephon.run.directory import RunDir
from zephon.run.events import EventLog
from zephon.run.finished import missing_at_end
from zephon.run.generation import Generation, claim, newest_claim, read_generation
from zephon.run.progress import Progress, read_progress
from zephon.run.secret import make_secret
from zephon.run.stop import read_stop
from zephon.run.target import read_target
from zephon.spec.experiment import RunSpec

TICK_S = 0.05
_POLL_S = 0.5
_FIRST_STEP_FACTOR = 3.0
_REFUSED_S = 60.0


class Training:
    """Trains one attempt, from the first node to the last step: ``start``, ``run``, ``close``.

    Args:
        rundir: the run directory, for events, the newest generation and progress.
        attempt: number of this start.
        spec: the attempt's resolved spec.
        target: never more nodes than this (None: no bound but the spec's).
        expected: how many nodes the first generation waits for, and the first one after everybody has left.
        last: whether the job ends with it; then its end is announced to all nodes.
        linger: never give up waiting for nodes.
    """

    def __init__(
        self,
        rundir: RunDir,
        attempt: int,
        spec: RunSpec,
        *,
        target: int | None = None,
        expected: int | None = None,
        last: bool = True,
        linger: bool = False,
    ) -> None:
        self.rundir, self.attempt, self.spec, self.expected, self.last = rundir, attempt, spec, expected, last
        self.events = EventLog(rundir, attempt, "coordinator")
        self.server = Server()
        known, newest = read_generation(rundir), newest_claim(rundir)
        now = time.monotonic()
        rules = rules_of(spec)
        if linger:
            rules = dataclasses.replace(rules, join_timeout_s=math.inf)
        self.membership = Membership(rules, target=target, expected=expected, generation=newest[1], now=now)
        self._stop = read_stop(rundir, attempt)
        if known is not None and known.order == newest and known.attempt == attempt:
            stopped = self._stop is not None and self._stop.time > known.time  # then they have ended, or will soon
            self.membership.adopt(known.nodes, now, returning=not stopped)
        self.resizes = Resizes()
        self.last_resize: Mapping[str, Any] | None = None
        self._watched: tuple[int, int | None] = (-1, None)
        self._watched_since, self._first_step = now, True
        self._refused, self._refused_at = 0, -math.inf
        self._news = asyncio.Event()

    @property
    def port(self) -> int:
        return self.server.port

    async def start(self, host: str, port: int) -> None:
        """Begins to listen; ``port`` 0 takes a free one and sets ``self.port``."""
        await self.server.start(host, port, self, secret=make_secret(self.rundir, self.attempt))

    async def run(self) -> Finish:
        """Decides until training has ended: at every message, and when time has passed."""
        polled, looked = 0.0, -math.inf
        while self.membership.finished is None:
            now = time.monotonic()
            if now - polled >= (TICK_S if self.resizes.settling else _POLL_S):
                polled = now
                self._read_progress()
            if self.membership.all_done() and now - looked >= _POLL_S:
                looked = now
                self.membership.note_missing(missing_at_end(self.rundir, self.spec.trainer.steps))
            for action in self.membership.decide(now):
                self._act(action)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):  # wait_for of Python 3.11 may swallow the end of this task
                    await self._news.wait()
            self._news.clear()
        return self.membership.finished

    async def close(self) -> None:
        """Stops listening and drops all connections."""
        await self.server.close()

    def announce(self, finish: Finish) -> None:
        """The job has ended: every node gets the message, also one that comes later."""
        self.membership.finished = finish
        self.events.write("finish", status=finish.status, cause=finish.cause)
        for node in self.server.connected():
            self.server.send(node, finish)

    def drain_failure(self) -> str:
        """Why the end of the last generation was no clean drain, and what that cost; empty where it was one.

        A drain that was cut off before the first step has lost nothing.
        """
        members = self.membership
        broken = members.broken or ("its nodes ended and did not say how" if members.active else None)
        if broken is None:
            return ""
        progress, saved = read_progress(self.rundir, self.attempt), max(newest_checkpoint(self.rundir), 0)
        lost = max(0, progress.step - saved) if progress else 0
        cut = isinstance(broken, WorkerError) and broken.cut
        if cut and not lost:
            return ""
        cause = broken.message if isinstance(broken, WorkerError) and cut else _worded(broken)
        return f"{cause}; {lost} steps were lost (the last checkpoint is of step {saved})" if lost else cause

    # What the server reports

    def received(self, node: str, message: FromAgent) -> None:
        now = time.monotonic()
        self._news.set()
        match message:
            case Hello():
                self._greet(message, now)
            case Ready():
                self.membership.ready(node, now, store=message.store)
                self.events.write("node_ready", node=node)
            case Beat():
                self.membership.beat(node, now)
            case Leaving():
                self.membership.leaving(node, now)
                self.events.write("node_leaving", node=node)
            case Exited():
                self._note_exits(node, message, now)

    def replaced(self, node: str, hello: Hello) -> None:
        if hello.generation != self.membership.generation:
            self.membership.gone(node, time.monotonic())

    def gone(self, node: str) -> None:
        self._news.set()
        leaving = node in self.membership.nodes and self.membership.nodes[node].leaving
        self.membership.gone(node, time.monotonic())
        self.events.write("node_gone", node=node)
        last = not self.membership.nodes and self.membership.finished is None
        if leaving and last and (failure := self.drain_failure()):
            self.events.write("drain_failed", cause=failure)

    def refused(self, node: str, error: str) -> None:
        """Written once a minute at most: a stranger could fill the disk with events."""
        self._refused += 1
        if time.monotonic() - self._refused_at >= _REFUSED_S:
            self.events.write("bad_connection", node=node, error=error, number=self._refused)
            self._refused, self._refused_at = 0, time.monotonic()

    def _greet(self, hello: Hello, now: float) -> None:
        members, node, generation = self.membership, hello.node, hello.generation
        if not members.nodes:
            self._begin_rendezvous()
        members.hello(node, now, generation=generation)
        current = generation == members.generation and members.active and not members.rerendezvous
        if generation is not None and not current:
            # It missed the order to stop while it was away, frozen or cut off.
            self.server.send(node, Rerendezvous(generation, "lost contact", drain=False))
        self.events.write("node_hello", node=node, pid=hello.pid, host=hello.host)
        if members.finished is not None:  # a lingering coordinator sends latecomers the job's end
            self.server.send(node, members.finished)

    def _note_exits(self, node: str, message: Exited, now: float) -> None:
        if message.generation == self.membership.generation:
            self.resizes.ordered("workers ended", time.time(), nodes=len(self.membership.members))
            self.resizes.stopped(time.time())
        self._note_progress(read_progress(self.rundir, self.attempt))  # a checkpoint from before the end counts as before
        self.membership.exited(node, now, generation=message.generation, exits=message.exits, error=message.error)
        error = dataclasses.asdict(message.error) if message.error else None
        self.events.write("workers_exited", node=node, generation=message.generation, exits=message.exits, error=error)

    def _begin_rendezvous(self) -> None:
        """A job that starts, or that comes back after a stop, waits for the size that was asked for last."""
        target = read_target(self.rundir, self.attempt)
        self.membership.rendezvous(target.nodes if target else self.expected)
        known, self._stop = self._stop, read_stop(self.rundir, self.attempt)
        # A stop is no stall. Otherwise the last node was replaced, and training stalled meanwhile. The launcher records a
        # stop on a cluster, where the coordinator lives on. A pause by the cluster's own tools or its queue leaves no
        # record: one that is longer than the join timeout is taken for a stop.
        stopped = self._stop != known or self.resizes.waited(time.time()) > self.spec.elastic.join_timeout_s
        if stopped:
            self.resizes = Resizes()

    # What the membership decides

    def _act(self, action: Action) -> None:
        match action:
            case Form():
                self._form(action)
            case Rerendezvous():
                self.resizes.ordered(action.reason, time.time(), nodes=len(self.membership.members))
                self.events.write("rerendezvous", generation=action.generation, reason=action.reason, drain=action.drain)
                for node in self.membership.members:
                    self.server.send(node, action)
            case Release():
                self.server.send(action.node, Released())
            case Finish():
                if self.last:
                    self.announce(action)

    def _form(self, form: Form) -> None:
        world = len(form.nodes) * self.spec.elastic.procs_per_node
        formed = Generation(
            attempt=self.attempt, generation=form.generation, nodes=form.nodes, world_size=world, time=time.time()
        )
        try:
            claim(self.rundir, formed)
        except Superseded as error:
            if newest_claim(self.rundir)[0] <= self.attempt:
                raise  # another coordinator of this attempt: this one ends, and where it is started again it adopts
            self._act(self.membership.supersede(error.what))
            return
        self.events.write("generation", generation=form.generation, nodes=list(form.nodes), world_size=world)
        progress = read_progress(self.rundir, self.attempt)
        self.resizes.formed(form.generation, time.time(), nodes=len(form.nodes), progress=progress)
        for rank, node in enumerate(form.nodes):
            self.server.send(node, Assign(form.generation, rank, len(form.nodes), form.store))
        for node in set(self.server.connected()) - set(form.nodes):
            self.server.send(node, Standby(form.generation))

    # What the workers write

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
        now, watched, active = time.monotonic(), (self.membership.generation, step), self.membership.active
        if watched != self._watched or not active:
            self._first_step = watched[0] != self._watched[0] or (self._first_step and not active)
            self._watched, self._watched_since = watched, now
        limit = self.spec.elastic.stall_s * (_FIRST_STEP_FACTOR if self._first_step else 1.0)
        if now - self._watched_since > limit:
            self.membership.stalled(step, now - self._watched_since, now)


def _worded(broken: WorkerError | str) -> str:
    return cause_of(broken, "") if isinstance(broken, WorkerError) else broken
