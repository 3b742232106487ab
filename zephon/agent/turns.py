"""A coordinator that also sees to the stages around training: which one is due, and which node has the turn.

    doctor, calibrate ──► train: all nodes ──► evaluate, report
    one node's turn each, the others wait      one node's turn each, the others have ended

Why the coordinator decides and a node does: docs/kubernetes.md. What is known is in ``attempts/NNNN/stages.json``, so that a
coordinator that is started again goes on; a node whose turn was given to another may not write the stage's record any more.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import Any

from zephon.agent.coordinator import TICK_S, Coordinator
from zephon.agent.membership import Action, Finish, natural
from zephon.agent.stage_runner import record_end, record_training
from zephon.exits import Exit
from zephon.run.checkpoints import newest_checkpoint
from zephon.run.directory import RunDir
from zephon.stages.stage import TRAIN, Stage, read_turns, stages_of

_OVER = ("done", "skipped")


@dataclasses.dataclass
class Turn:
    """Who carries out the present stage.

    Args:
        number: grows with every order, also over restarts of the coordinator.
        node: whose turn it is; empty while nobody is there to take it.
        before: the stage's state when the turn was given.
        begun: the node has said that it has started the stage's process.
        away: since when that node has not been heard, on the monotonic clock.
        leaving: it said that it was asked to leave.
        ended: how the run goes on, and the stage's state.
    """

    number: int = 0
    node: str = ""
    before: str = "waiting"
    begun: bool = False
    away: float | None = None
    leaving: bool = False
    ended: tuple[Finish, str] | None = None


class StagedCoordinator(Coordinator):
    """Serves one attempt from its first stage to its last. Arguments as for Coordinator."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        known = read_turns(self.rundir, self.attempt)
        states = dict(known.get("stages", []))
        self.stages = {stage.name: str(states.get(stage.name, "waiting")) for stage in stages_of(self.spec)}
        self.stage = ""
        self.turn = Turn(number=int(known.get("turn", 0)), node=str(known.get("node", "")), begun=True)
        self.lost = int(known.get("lost", 0))
        self._finish: dict[str, Any] | None = known.get("finish")
        self._dismissed: set[str] = set()
        self._since = time.monotonic()

    async def run(self) -> Finish:
        """All stages in order, until one does not end well; then tells every agent."""
        finish = Finish(**self._finish) if self._finish else await self._carry_out()
        self.stage, self._finish = "", dataclasses.asdict(finish)
        self._note()
        self.membership.finished = finish
        super()._act(finish)
        return finish

    async def _carry_out(self) -> Finish:
        for stage in stages_of(self.spec):
            if self.stages[stage.name] in _OVER:
                continue
            self.stage = stage.name
            finish = await (self._train() if stage.name == TRAIN else self._other(stage))
            if finish.status:
                return finish
        return Finish(Exit.DONE, "all stages are done")

    async def _train(self) -> Finish:
        again, started = self.stages[TRAIN] == "running", time.time()
        if newest_checkpoint(self.rundir) >= self.spec.trainer.steps:
            self.stages[TRAIN] = "done" if again else "skipped"
            return Finish(Exit.DONE, "all steps are done")
        self.stages[TRAIN] = "running"
        self._note()
        self.membership.begin(time.monotonic())
        finish = await super().run()
        self.stages[TRAIN] = "failed" if finish.status else "done"
        record_training(self.rundir, self.attempt, self.spec, started=started, finish=finish)
        self._note()
        self.membership.finished = None  # for the nodes it has not: stages may follow
        return finish

    async def _other(self, stage: Stage) -> Finish:
        self._since = time.monotonic()
        while self.turn.ended is None:
            self._attend(stage, time.monotonic())
            await asyncio.sleep(TICK_S)
        finish, state = self.turn.ended
        self.stages[stage.name], self.lost = state, 0
        self.turn = Turn(number=self.turn.number)
        self._note()
        self.events.write("stage_ended", stage=stage.name, state=state, status=finish.status, cause=finish.cause)
        return finish

    def _attend(self, stage: Stage, now: float) -> None:
        """Gives the turn to a node, and to another one when that has been silent for two heartbeats."""
        turn = self.turn
        if turn.node and self._there(turn.node, now):
            turn.away = None
            self._since = now
            self._dismiss()
            return
        if turn.node and not turn.begun:  # it was about to leave when the turn came: nothing is lost
            self._take_back(turn.before)
            return
        if turn.node:
            turn.away = turn.away or now
            if now - turn.away < 2 * self.membership.rules.heartbeat_s:
                return
            if not turn.leaving and self._spent(stage, turn):
                return
        node = self._free(now)
        if node is None:
            if now - self._since > self.membership.rules.join_timeout_s:
                turn.ended = (Finish(Exit.FAILED, f"no node came for stage {stage.name}"), "failed")
            return
        if turn.node:
            self.events.write("stage_lost", stage=stage.name, node=turn.node, turn=turn.number)
        self._withdraw(turn.node)
        self.turn = Turn(number=turn.number + 1, node=node, before=self.stages[stage.name])
        self.stages[stage.name] = "running"
        self._note()  # before the order: whoever has the turn before this may not write any more
        self.events.write("stage_started", stage=stage.name, node=node, turn=self.turn.number)
        self._order(node)

    def _spent(self, stage: Stage, turn: Turn) -> bool:
        """Counts a lost node, once; more than the failure budget allows end the run."""
        turn.leaving = True
        self.lost += 1
        self._note()
        if self.lost <= self.membership.rules.budget:
            return False
        cause = f"the nodes that ran it were lost {self.lost} times, the last one was {turn.node}"
        record_end(stage, self.rundir, self.attempt, status="failed", error=cause)
        turn.ended = (Finish(Exit.FAILED, f"stage {stage.name} failed: {cause}"), "failed")
        return True

    def _there(self, name: str, now: float) -> bool:
        node = self.membership.nodes.get(name)
        return name in self._links and node is not None and now - node.seen <= 2 * self.membership.rules.heartbeat_s

    def _free(self, now: float) -> str | None:
        """The first node, by name, that can take a turn."""
        nodes = [node.name for node in self.membership.nodes.values() if not node.leaving and self._there(node.name, now)]
        return min((name for name in nodes if name not in self._dismissed), key=natural, default=None)

    def _order(self, name: str) -> None:
        self._tell(name, kind="stage", stage=self.stage, turn=self.turn.number)

    def _withdraw(self, name: str) -> None:
        self._tell(name, kind="stage", stage="", turn=-self.turn.number)

    def _dismiss(self) -> None:
        """Behind training one node is enough: the others end, and what they hold is free."""
        if self.stages[TRAIN] not in _OVER:
            return
        for name in [name for name in self._links if name != self.turn.node and name not in self._dismissed]:
            self._dismissed.add(name)
            self._tell(name, kind="finish", status=Exit.DONE, cause="all steps are done")

    def _heard(self, name: str, message: dict[str, Any]) -> None:
        kind, turn = message["kind"], self.turn
        if kind in ("staging", "staged"):
            if message["turn"] != turn.number or name != turn.node:
                self._withdraw(name)
            elif kind == "staging":
                turn.begun = True
            elif turn.ended is None:
                self._ended(message)
            return
        super()._heard(name, message)
        if self.stage == TRAIN or self.membership.finished is not None:
            return
        if kind == "leaving":
            turn.leaving = turn.leaving or name == turn.node
            self._tell(name, kind="release")
        elif kind == "hello":
            self._dismissed.discard(name)  # it has not heard
            if name == turn.node and turn.ended is None:
                self._order(name)  # the first order may have been lost with the connection

    def _ended(self, message: dict[str, Any]) -> None:
        if message["state"] == "stopped":  # its node was asked to leave; the next one begins again
            self._take_back("stopped")
            return
        self.turn.ended = (Finish(int(message["status"]), str(message["cause"])), str(message["state"]))

    def _take_back(self, state: str) -> None:
        self.turn = Turn(number=self.turn.number)
        self.stages[self.stage] = state
        self._note()

    def _act(self, action: Action) -> None:
        if not isinstance(action, Finish):  # how training ends is not how the run ends
            super()._act(action)

    def _note(self) -> None:
        data = {
            "stages": [[*each] for each in self.stages.items()],
            "stage": self.stage,
            "node": self.turn.node,
            "turn": self.turn.number,
            "lost": self.lost,
            "finish": self._finish,
            "time": time.time(),
        }
        self.rundir.write_json("attempts", RunDir.attempt_name(self.attempt), "stages.json", data=data)
