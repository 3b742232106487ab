"""Which node carries out the present stage, where one is enough: one decision maker, as a state machine without I/O.

The owner is the node that got the newest order to run the stage. Its *fencing token* grows with every such order, also over
restarts of the coordinator: a node with an older token may not write the stage's record any more.

    free --Give--> ordered --(it has started)--> running --(its process has ended)--> free

What ``decide`` does, by state and by whether the owner is there (connected, with recent heartbeats):

    state      it is there     it is not
    free                       Give it to the first node that can take it; Fail when none has come for long
    ordered    wait            PutBack: it was about to leave when the order came, so nothing had begun
    running    wait            away
    away       running         after two heartbeats lost, and counted unless it had announced that it leaves; too many: Fail
                               (a new coordinator waits longer for the one that it finds noted)
    lost       running         as free
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from zephon.agent.membership import natural
from zephon.agent.rules import Rules
from zephon.run.stage_records import StageState

State = Literal["free", "ordered", "running", "away", "lost"]


@dataclasses.dataclass(frozen=True)
class Give:
    """Order ``node`` to run the stage; ``lost`` is the node that it is taken from, empty where nobody had it."""

    node: str
    token: int
    lost: str


@dataclasses.dataclass(frozen=True)
class PutBack:
    """No process runs the stage; its state is what it was before the last order."""

    state: StageState


@dataclasses.dataclass(frozen=True)
class CountLoss:
    """The owner is lost; ``lost`` nodes of this stage by now."""

    lost: int


@dataclasses.dataclass(frozen=True)
class Fail:
    """The stage has failed; ``begun`` says whether a process of it had, whose record is to be ended."""

    cause: str
    begun: bool


Action = Give | PutBack | CountLoss | Fail


class StageOwner:
    """The state machine. Times are seconds of any monotonic clock, passed in.

    Args:
        token, node, lost: what an earlier coordinator of this attempt has recorded; a node runs the stage.
    """

    def __init__(self, rules: Rules, *, token: int = 0, node: str = "", lost: int = 0, now: float = 0.0) -> None:
        self.rules, self.token, self.node, self.lost = rules, token, node, lost
        self.state: State = "running" if node else "free"
        self._before: StageState = "waiting"
        self._leaving = False
        self._returning = bool(node)  # it has not found this coordinator yet
        self._away_since = now
        self._unattended_since = now

    def begin(self, now: float) -> None:
        """A stage is due: the wait for a node begins."""
        self._unattended_since = now

    def holds(self, node: str, token: int) -> bool:
        """Whether this node is the owner, by its newest order."""
        return node == self.node != "" and token == self.token

    def started(self) -> None:
        """The owner has started the stage's process."""
        if self.state == "ordered":
            self.state = "running"

    def leaving(self, node: str) -> None:
        """A node was asked to leave; the loss of one that has announced it is not counted."""
        self._leaving = self._leaving or node == self.node

    def release(self) -> None:
        """The owner's process has ended, or is not needed any more."""
        self.node, self.state, self._leaving, self._returning = "", "free", False, False

    def end(self) -> None:
        """The stage has ended: losses are counted anew."""
        self.release()
        self.lost = 0

    def decide(self, stage: str, shown: StageState, *, there: Sequence[str], free: Sequence[str], now: float) -> list[Action]:
        """What is due now.

        Args:
            stage, shown: the stage that is due, and its state as shown.
            there: nodes that are connected, with recent heartbeats.
            free: those of them that can take a stage.
        """
        if self.node and self.node in there:
            if self.state in ("away", "lost"):
                self.state = "running"
            self._unattended_since, self._returning = now, False
            return []
        if self.state == "ordered":
            self.release()
            return [PutBack(self._before)]
        if self.state == "running":
            self.state, self._away_since = "away", now
        actions: list[Action] = []
        if self.state == "away":
            if now - self._away_since < self.rules.silence(returning=self._returning):
                return []
            actions = self._lose(stage)
        return actions if actions and isinstance(actions[-1], Fail) else [*actions, *self._give(stage, shown, free, now)]

    def _lose(self, stage: str) -> list[Action]:
        """Counts a lost node, once; more than the failure budget allows end the run."""
        self.state = "lost"
        if self._leaving:
            return []
        self._leaving = True
        self.lost += 1
        if self.lost <= self.rules.budget:
            return [CountLoss(self.lost)]
        cause = f"the nodes that ran it were lost {self.lost} times, the last one was {self.node}"
        return [CountLoss(self.lost), Fail(cause, begun=True)]

    def _give(self, stage: str, shown: StageState, free: Sequence[str], now: float) -> list[Action]:
        node = min(free, key=natural, default=None)
        if node is None:
            waited = now - self._unattended_since
            return [Fail(f"no node came for stage {stage}", begun=False)] if waited > self.rules.join_timeout_s else []
        lost, self.node, self.token = self.node, node, self.token + 1
        self.state, self._before, self._leaving, self._returning = "ordered", shown, False, False
        return [Give(node, self.token, lost)]
