"""The coordinator of an attempt: one process, to which all agents are connected. ``python -m zephon.agent.coordinator``

    doctor, calibrate ──► train: all nodes ──► evaluate, report
    one node each, the others wait             one node each, the others have ended

For a run that only trains it is a ``Training``. Otherwise it walks over the stages and orders one node to carry out each of
the others (why: docs/kubernetes.md). It may be killed and started again: agents reconnect and report their state, and what it
knows of the stages is in ``attempts/NNNN/stages.json``. It imports no torch.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from zephon.agent.entry import bring_spec
from zephon.agent.messages import (
    Finish,
    FromAgent,
    Hello,
    Leaving,
    Released,
    RunStage,
    StageEnded,
    StageStarted,
    WithdrawStage,
)
from zephon.agent.stage_owner import Fail, Give, PutBack, StageOwner
from zephon.agent.training import TICK_S, Training
from zephon.errors import ZephonError
from zephon.exits import Exit
from zephon.run.attempt_stages import AttemptStages, read_attempt_stages, write_attempt_stages
from zephon.run.checkpoints import newest_checkpoint
from zephon.run.directory import RunDir
from zephon.run.secret import forget_secret, make_secret
from zephon.spec.experiment import RunSpec
from zephon.stages.record import record_end, record_training
from zephon.stages.stage import TRAIN, Stage, stages_of
from zephon.stages.walk import StageEnd, Walk


class Coordinator:
    """Serves one attempt from its first stage to its last: ``start``, ``run``, ``close``.

    Args:
        expected: how many nodes the first generation waits for.
        linger: never give up waiting for nodes.
    """

    def __init__(
        self, rundir: RunDir, attempt: int, spec: RunSpec, *, expected: int | None = None, linger: bool = False
    ) -> None:
        self.rundir, self.attempt, self.spec = rundir, attempt, spec
        self.training = Training(rundir, attempt, spec, expected=expected, last=False, linger=linger)
        self.membership, self.events, self.server = self.training.membership, self.training.events, self.training.server
        known = read_attempt_stages(rundir, attempt)
        self.walk = Walk(stages_of(spec), known.states)
        now = time.monotonic()
        self.owner = StageOwner(self.membership.rules, token=known.token, node=known.node, lost=known.lost, now=now)
        self._finish = Finish(known.status, known.cause) if known.status is not None else None
        self._ended: StageEnd | None = None
        self._dismissed: set[str] = set()

    @property
    def port(self) -> int:
        return self.server.port

    async def start(self, host: str, port: int) -> None:
        """Begins to listen; ``port`` 0 takes a free one and sets ``self.port``."""
        await self.server.start(host, port, self, secret=make_secret(self.rundir, self.attempt))

    async def run(self) -> Finish:
        """All stages in order, until one does not end well; then every node gets the message."""
        finish = self._finish or await self._walk()
        self.walk.stage, self._finish = "", finish
        self._save()
        self.training.announce(finish)
        return finish

    async def close(self) -> None:
        """Stops listening and drops all connections."""
        await self.server.close()

    async def _walk(self) -> Finish:
        while (stage := self.walk.next(trained=newest_checkpoint(self.rundir) >= self.spec.trainer.steps)) is not None:
            self.walk.end(await (self._train() if stage.name == TRAIN else self._other(stage)))
            self._save()
        assert self.walk.finish is not None
        return Finish(self.walk.finish.status, self.walk.finish.cause)

    async def _train(self) -> StageEnd:
        started = time.time()
        self.walk.begin()
        self._save()
        self.membership.begin(time.monotonic())
        finish = await self.training.run()
        end = StageEnd("failed" if finish.status else "done", finish.status, finish.cause)
        record_training(self.rundir, self.attempt, self.spec, started=started, end=end)
        self.membership.finished = None  # stages may follow, for which the nodes are needed
        return end

    async def _other(self, stage: Stage) -> StageEnd:
        self.owner.begin(time.monotonic())
        while self._ended is None:
            self._attend(stage, time.monotonic())
            await asyncio.sleep(TICK_S)
        end, self._ended = self._ended, None
        self.owner.end()
        self.events.write("stage_ended", stage=stage.name, state=end.state, status=end.status, cause=end.cause)
        return end

    def _attend(self, stage: Stage, now: float) -> None:
        there = [node for node in self.server.connected() if self._responds(node, now)]
        free = [node for node in there if not self.membership.nodes[node].leaving and node not in self._dismissed]
        for action in self.owner.decide(stage.name, self.walk.states[stage.name], there=there, free=free, now=now):
            if isinstance(action, Give):
                self._give(stage, action)
            elif isinstance(action, Fail):
                self._fail(stage, action)
            else:
                if isinstance(action, PutBack):
                    self.walk.put_back(action.state)
                self._save()
        if self.owner.node in there:
            self._dismiss()

    def _responds(self, name: str, now: float) -> bool:
        node = self.membership.nodes.get(name)
        return node is not None and now - node.seen <= 2 * self.membership.rules.heartbeat_s

    def _give(self, stage: Stage, order: Give) -> None:
        if order.lost:
            self.events.write("stage_lost", stage=stage.name, node=order.lost, token=order.token - 1)
            self.server.send(order.lost, WithdrawStage(order.token))
        self.walk.begin()
        self._save()  # before the order: from now on the previous owner may not write
        self.events.write("stage_started", stage=stage.name, node=order.node, token=order.token)
        self._order()

    def _fail(self, stage: Stage, failure: Fail) -> None:
        cause = failure.cause
        if failure.begun:
            record_end(stage, self.rundir, self.attempt, status="failed", error=cause)
            cause = f"stage {stage.name} failed: {cause}"
        self._ended = StageEnd("failed", Exit.FAILED, cause)

    def _order(self) -> None:
        self.server.send(self.owner.node, RunStage(self.walk.stage, self.owner.token))

    def _dismiss(self) -> None:
        """After training one node is enough: the others end and free their machines."""
        if not self.walk.training_is_over():
            return
        for node in self.server.connected():
            if node != self.owner.node and node not in self._dismissed:
                self._dismissed.add(node)
                self.server.send(node, Finish(Exit.DONE, "all steps are done"))

    # What the server reports

    def received(self, node: str, message: FromAgent) -> None:
        if isinstance(message, StageStarted | StageEnded):
            self._note_stage(node, message)
            return
        self.training.received(node, message)
        if self.walk.stage == TRAIN or self.membership.finished is not None:
            return
        if isinstance(message, Leaving):
            self.owner.leaving(node)
            self.server.send(node, Released())
        elif isinstance(message, Hello):
            self._dismissed.discard(node)  # it has missed the message
            if node == self.owner.node and self._ended is None:
                self._order()  # the first order may have been lost with the connection

    def replaced(self, node: str, hello: Hello) -> None:
        self.training.replaced(node, hello)

    def gone(self, node: str) -> None:
        self.training.gone(node)

    def refused(self, node: str, error: str) -> None:
        self.training.refused(node, error)

    def _note_stage(self, node: str, message: StageStarted | StageEnded) -> None:
        if not self.owner.holds(node, message.token):
            self.server.send(node, WithdrawStage(self.owner.token))
        elif isinstance(message, StageStarted):
            self.owner.started()
        elif self._ended is None and message.state == "stopped":  # its node was asked to leave; the next one begins again
            self.owner.release()
            self.walk.put_back("stopped")
            self._save()
        elif self._ended is None:
            self._ended = StageEnd(message.state, message.status, message.cause)

    def _save(self) -> None:
        known = AttemptStages(
            states=self.walk.states,
            stage=self.walk.stage,
            node=self.owner.node,
            token=self.owner.token,
            lost=self.owner.lost,
            status=self._finish.status if self._finish else None,
            cause=self._finish.cause if self._finish else "",
        )
        write_attempt_stages(self.rundir, self.attempt, known)


async def _main(arguments: argparse.Namespace) -> int:
    rundir, attempt = RunDir(arguments.run), arguments.attempt
    rundir.check_exclusive()  # the launcher may not have seen this directory
    spec = bring_spec(rundir, attempt)
    coordinator: Coordinator | Training
    if len(spec.stages.order) > 1:
        coordinator = Coordinator(rundir, attempt, spec, expected=arguments.nodes, linger=arguments.linger)
    else:
        coordinator = Training(rundir, attempt, spec, expected=arguments.nodes, linger=arguments.linger)
    await coordinator.start(arguments.host, arguments.port)
    print(f"coordinator of {arguments.run} attempt {attempt} on {arguments.host}:{coordinator.port}", flush=True)
    finish = await coordinator.run()
    print(f"finished with status {finish.status}: {finish.cause}", flush=True)
    if arguments.linger:
        await asyncio.Event().wait()
    await coordinator.close()
    forget_secret(rundir, attempt)
    return finish.status


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m zephon.agent.coordinator", allow_abbrev=False)
    parser.add_argument("--run", required=True, help="URL of the run directory")
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--nodes", type=int, default=None, help="how many nodes the first generation waits for")
    parser.add_argument(
        "--linger",
        action="store_true",
        help="never give up waiting for nodes, and stay after the end until killed: for a cluster that restarts what exits",
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
