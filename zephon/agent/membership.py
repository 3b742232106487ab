"""Who trains together: one decision maker, as a state machine without I/O.

A *generation* is a numbered list of nodes. Nodes say hello, become ready, work, and stop; ``decide`` looks at all of them and
the clock, and returns the messages that are due::

    ready nodes --Form--> working --(Rerendezvous: join, leave, lost, rescale, crash)--> stopped --> ready --Form--> ...
                                  \\--(all workers 0)--> Finish 0

Rules: a generation forms at once when the target size is ready, else when nobody more is expected; it takes the largest
allowed number of nodes, the others stand by; a planned change drains, a lost node does not wait. Only crashes spend the
failure budget, and every new checkpoint restores it; a crash before the first step, and exit status 65, are final.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Literal

from zephon.agent.messages import Finish, Rerendezvous, WorkerError
from zephon.agent.rules import Rules
from zephon.exits import PLANNED, Exit

STALLED = "stalled"

State = Literal["starting", "ready", "working", "stopped", "done"]


@dataclasses.dataclass(frozen=True)
class Form:
    """Start a generation with these nodes, in rank order; ``store`` is the address of the first one's store."""

    generation: int
    nodes: tuple[str, ...]
    store: str


@dataclasses.dataclass(frozen=True)
class Release:
    """This leaving node is no longer needed by anybody: the generation in which it worked has ended."""

    node: str


Action = Form | Rerendezvous | Finish | Release


@dataclasses.dataclass
class Node:
    """What is known of one node. ``exits`` maps rank -> exit status of the present generation's workers."""

    name: str
    state: State = "starting"
    store: str = ""
    leaving: bool = False
    released: bool = False
    returning: bool = False  # worked under an earlier coordinator and has not found this one yet
    seen: float = 0.0
    since: float = 0.0
    exits: dict[int, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Counters:
    """Run-wide counts of one attempt; only failures spend the budget."""

    failures: int = 0
    failures_since_checkpoint: int = 0
    lost: int = 0
    resizes: int = 0


class Membership:
    """The state machine. Times are seconds of any monotonic clock, passed in."""

    def __init__(self, rules: Rules, *, target: int | None, generation: int, now: float, expected: int | None = None) -> None:
        self.rules = rules
        self.target = target  # never more than these
        self.expected = expected if target is None else target  # the first generation waits for these
        self.generation = generation
        self.nodes: dict[str, Node] = {}
        self.members: tuple[str, ...] = ()
        self.active = False
        self.rerendezvous: Rerendezvous | None = None
        self.finished: Finish | None = None
        self.counters = Counters()
        self.stepped = False
        self.checkpoint = -1
        self.missing = ""
        self.first_error: WorkerError | None = None
        self.broken: WorkerError | str | None = None
        """what ended the last generation where it was no drain, or inside its drain; None once another one has formed"""
        self._formed_once = False
        self._after_loss = False
        self._resizing = False
        self._announced: Rerendezvous | None = None
        self._changed = now
        self._short_since = now
        self._ordered_at = now

    def adopt(self, members: tuple[str, ...], now: float, *, returning: bool = True) -> None:
        """An earlier coordinator of this attempt formed the present generation: its nodes are expected to say hello.

        Its workers train on meanwhile; so a node that is ``returning`` gets the time that a link needs to find its way.
        """
        self.members, self.active, self._formed_once = members, True, True
        for name in members:
            self.nodes[name] = Node(name, state="working", returning=returning, seen=now, since=now)

    # What nodes report

    def hello(self, name: str, now: float, *, generation: int | None = None) -> None:
        """A node is there; with ``generation``, it still works in one that an earlier coordinator formed."""
        node = self.nodes.setdefault(name, Node(name))
        node.seen = node.since = now
        node.returning = False
        if generation is not None and generation == self.generation and name in self.members:
            node.state = "working"
        self._changed = now

    def ready(self, name: str, now: float, *, store: str) -> None:
        """Started and without workers: it can be given a place."""
        node = self.nodes.setdefault(name, Node(name))
        node.state, node.store, node.seen, node.since = "ready", store, now, now
        self._changed = now

    def beat(self, name: str, now: float) -> None:
        if name in self.nodes:
            self.nodes[name].seen = now

    def leaving(self, name: str, now: float) -> None:
        """Asked to leave: no place in further generations. Its workers drain by its own doing."""
        if name in self.nodes:
            self.nodes[name].leaving = True
            self._changed = now

    def exited(self, name: str, now: float, *, generation: int, exits: Mapping[int, int], error: WorkerError | None) -> None:
        """All workers of a node have ended."""
        node = self.nodes.get(name)
        if node is None or generation != self.generation:
            return
        node.exits = dict(exits)
        node.state = "done" if all(status == Exit.DONE for status in exits.values()) else "stopped"
        node.seen = node.since = now
        if error and (self.first_error is None or _precedence(error) < _precedence(self.first_error)):
            self.first_error = error

    def gone(self, name: str, now: float) -> None:
        """Its connection has ended, announced or not."""
        node = self.nodes.pop(name, None)
        if node is None:
            return
        self._changed = now
        if self.active and name in self.members and node.state == "working":
            self.counters.lost += 1
            self._order_rerendezvous(f"lost {name}", now, drain=False)

    def stalled(self, step: int | None, seconds: float, now: float) -> None:
        """No step for long: the workers are ended, and it counts as a crash."""
        if self.active and self.rerendezvous is None:
            self._order_rerendezvous(f"{STALLED} after step {step or 0}: no step for {seconds:.0f} s", now, drain=False)

    def rescale(self, target: int, now: float) -> None:
        """The user's order of a new number of nodes."""
        if target != self.target:
            self.target = self.expected = target
            self._changed = now

    def rendezvous(self, expected: int | None) -> None:
        """No node is left, at a start or after all have left: the next generation waits for ``expected`` nodes."""
        self.expected = self.target if self.target is not None else expected
        self._formed_once = self._after_loss = False

    def begin(self, now: float) -> None:
        """Training begins: waiting times count from now."""
        self._changed = self._short_since = now

    def supersede(self, cause: str) -> Finish:
        """Another attempt has claimed the run: this one ends for good."""
        self.finished = Finish(Exit.FAILED, cause)
        self.active = False
        return self.finished

    def progress(self, *, step: int | None, checkpoint: int) -> None:
        """Steps done in this attempt, and the newest complete checkpoint."""
        self.stepped = self.stepped or step is not None
        if checkpoint > self.checkpoint:
            self.checkpoint = checkpoint
            self.counters.failures_since_checkpoint = 0

    def all_done(self) -> bool:
        """Whether every worker of the present generation has ended as after the last step."""
        members = [self.nodes[name] for name in self.members if name in self.nodes]
        return self.active and len(members) == len(self.members) and all(node.state == "done" for node in members)

    def note_missing(self, missing: str) -> None:
        """What the run's files lack before it is done: asked for while ``all_done``. Empty when nothing is missing."""
        self.missing = missing

    # Decisions

    def decide(self, now: float) -> list[Action]:
        """The actions due now, in order."""
        if self.finished:
            return []
        self._drop_silent(now)
        if self.active:
            self._watch(now)
        actions: list[Action] = []
        if self.rerendezvous is not None and self.rerendezvous != self._announced:
            self._announced = self.rerendezvous
            actions.append(self.rerendezvous)
        if self.active and self.rerendezvous and self._all_stopped(now):
            self._close(now)
        actions += self._release()
        if not self.active and not self.finished:
            actions += self._form(now)
        return [*actions, self.finished] if self.finished else actions

    def _release(self) -> list[Action]:
        """Leaving nodes that no running generation needs; also those that were asked when their workers had ended already."""
        free = [n for n in self.nodes.values() if n.leaving and not n.released and not (self.active and n.name in self.members)]
        for node in free:
            node.released = True
        return [Release(node.name) for node in free]

    def _drop_silent(self, now: float) -> None:
        for name in [n.name for n in self.nodes.values() if now - n.seen > self.rules.silence(returning=n.returning)]:
            self.gone(name, now)

    def _watch(self, now: float) -> None:
        members = [self.nodes[name] for name in self.members if name in self.nodes]
        if self.all_done():
            if not self.missing:
                self._finish(Exit.DONE, "all steps are done")
            elif now - max(node.since for node in members) > self.rules.record_s:
                self._finish(Exit.FAILED, f"all workers ended with status 0, but {self.missing}")
        elif self.rerendezvous:
            return
        elif any(node.state in ("stopped", "ready") for node in members):
            crashed = any(status not in PLANNED for node in members for status in node.exits.values())
            self._order_rerendezvous("a worker failed" if crashed else "a node drained", now, drain=not crashed)
        elif any(node.leaving for node in members):
            self._order_rerendezvous("a node leaves", now, drain=True)
        elif self._better(now):
            self._order_rerendezvous("a node joined", now, drain=True)

    def _better(self, now: float) -> bool:
        """Whether the nodes at hand would make a larger generation, and no further one is about to come."""
        usable = [n for n in self.nodes.values() if not n.leaving and (n.state in ("ready", "working"))]
        size = self._size(len(usable))
        if size <= len(self.members):
            return False
        return size == self._want() or now - self._changed >= self.rules.window_s

    def _order_rerendezvous(self, reason: str, now: float, *, drain: bool) -> None:
        if self.rerendezvous is None or (self.rerendezvous.drain and not drain):
            self._ordered_at = now if self.rerendezvous is None else self._ordered_at
            self.rerendezvous = Rerendezvous(self.generation, reason, drain)

    def _all_stopped(self, now: float) -> bool:
        working = [name for name in self.members if name in self.nodes and self.nodes[name].state == "working"]
        if working and now - self._ordered_at > self.rules.drain_s + 2 * self.rules.heartbeat_s:
            for name in working:  # its agent should have killed them long ago: it is not in control of its node
                self.gone(name, now)
            return True
        return not working

    def _close(self, now: float) -> None:
        """The generation has ended: was it planned, a loss, or a crash?"""
        lost = self._after_loss = self.rerendezvous is not None and self.rerendezvous.reason.startswith("lost")
        stalled = (
            self.rerendezvous.reason if self.rerendezvous is not None and self.rerendezvous.reason.startswith(STALLED) else ""
        )
        statuses = [s for name in self.members if name in self.nodes for s in self.nodes[name].exits.values()]
        crashes = [status for status in statuses if status not in PLANNED]
        error, self.first_error = self.first_error, None
        reason = self.rerendezvous.reason if self.rerendezvous is not None else ""
        self.broken = error or (reason if lost or stalled or crashes else None)
        self.active, self.rerendezvous, self._changed, self._short_since = False, None, now, now
        if Exit.REFUSED in statuses:
            self._finish(Exit.REFUSED, cause_of(error, "a worker refused its configuration or contract"))
        elif stalled:
            self._count_crash(error, [-9], stalled)
        elif crashes and not lost:
            self._count_crash(error, crashes)
        else:
            self._resizing = True  # counted when a next generation forms: a run that stops has not been resized

    def _count_crash(self, error: WorkerError | None, crashes: list[int], stalled: str = "") -> None:
        self.counters.failures += 1
        self.counters.failures_since_checkpoint += 1
        first = error.status if error else crashes[0]
        cause = cause_of(error, stalled or f"a worker ended with status {first}")
        if first > 0 and not self.stepped and not stalled:
            self._finish(Exit.FAILED, "before the first step, so not tried again: " + cause)
        elif self.counters.failures_since_checkpoint > self.rules.budget:
            self._finish(Exit.FAILED, f"{self.counters.failures_since_checkpoint} crashes without a new checkpoint: {cause}")

    def _form(self, now: float) -> list[Action]:
        able = sorted(
            (n for n in self.nodes.values() if n.state in ("ready", "done") and not n.leaving), key=lambda n: natural(n.name)
        )
        # After a generation has closed, its members come back as ready within moments: wait for them like for others.
        coming = [n for n in self.nodes.values() if n.state in ("starting", "stopped", "working") and not n.leaving]
        size = self._size(len([n for n in able if n.state == "ready"]))
        if size < 1:
            if now - self._short_since > self.rules.join_timeout_s:
                self._finish(Exit.FAILED, f"fewer than {self.rules.minimum} nodes came within {self.rules.join_timeout_s:g} s")
            return []
        if size != self._want() and now - self._changed < self._patience(bool(coming)):
            return []
        chosen = [n for n in able if n.state == "ready"][:size]
        self.generation += 1
        self.broken = None
        self.members = tuple(n.name for n in chosen)
        self.active, self._formed_once = True, True
        self.counters.resizes += self._resizing
        self._resizing = False
        for node in chosen:
            node.state, node.exits, node.since = "working", {}, now
        return [Form(self.generation, self.members, chosen[0].store)]

    def _patience(self, coming: bool) -> float:
        """How long to wait, since the last change, for more nodes than are ready."""
        if not self._formed_once:
            return self.rules.rendezvous_s
        if coming:
            return 5 * self.rules.window_s
        return self.rules.window_s if self._after_loss else 0.0

    def _want(self) -> int:
        """The largest size that is wanted and allowed."""
        wanted = self.target if self._formed_once or self.expected is None else self.expected
        return self._size(self.rules.maximum if wanted is None else wanted)

    def _size(self, available: int) -> int:
        """The largest allowed number of nodes out of those available; 0 when there is none."""
        top = min(available, self.rules.maximum, self.target if self.target is not None else self.rules.maximum)
        return next((n for n in range(top, self.rules.minimum - 1, -1) if self.rules.allowed(n)), 0)

    def _finish(self, status: int, cause: str) -> None:
        self.finished = Finish(status, cause)
        self.active = False


def _precedence(error: WorkerError) -> tuple[bool, float]:
    """Which of two errors explains more: a rank that was stuck by itself, then the one that ended first."""
    return (not error.stuck, error.time)


def cause_of(error: WorkerError | None, otherwise: str) -> str:
    """An error of a worker in words; ``otherwise`` where there is none."""
    if error is None:
        return otherwise
    if error.stuck:
        return f"rank {error.rank} on {error.node} was stuck ({error.message})"
    return f"rank {error.rank} on {error.node} ended first, with status {error.status}: {error.message}"


def natural(name: str) -> list[tuple[int, int | str]]:
    """Natural order of node names: node-2 before node-10."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name)]
