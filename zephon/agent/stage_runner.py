"""Runs stages other than training: one process at a time, forked from a fork server.

On this machine the supervisor does it (``StageRunner.run``). On a cluster one node does it by the coordinator's order
(``OrderedStages``), polled by the agent's main thread while the node waits for a generation, and after its last step.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Mapping

from zephon.agent.fork_messages import Start
from zephon.agent.forkserver import ForkServer
from zephon.agent.link import Link
from zephon.agent.messages import Assign, Leaving, RunStage, StageEnded, StageStarted, WithdrawStage
from zephon.exits import Exit
from zephon.run.directory import RunDir
from zephon.run.stage_records import read_record
from zephon.spec.experiment import RunSpec
from zephon.stages.record import record_end
from zephon.stages.stage import Stage, stages_of
from zephon.stages.walk import StageEnd

_TICK_S = 0.05
_POLL_S = 0.1
_SHORT_S = 0.02
_GRACE_S = 5.0


class StageRunner:
    """Runs one stage at a time: ``start``, then ``poll`` until it returns how the stage ended.

    Args:
        env: added to the process's environment.
        logs: directory that gets ``NAME.log`` of each stage; None leaves it on this process's own output.
    """

    def __init__(
        self, server: ForkServer, *, rundir: RunDir, attempt: int, env: Mapping[str, str | None], logs: str | None
    ) -> None:
        self.server, self.rundir, self.attempt, self.env, self.logs = server, rundir, attempt, env, logs
        self.stage: Stage | None = None
        """the stage that runs; None when none does"""
        self._handle = 0
        self._stopped_at: float | None = None

    def start(self, stage: Stage, *, token: int | None = None) -> None:
        """``token`` is the fencing token of the order, where nodes carry stages out."""
        process = process_of(stage, rundir=self.rundir, attempt=self.attempt, env=self.env, log=self._log(stage), token=token)
        self.stage, self._handle, self._stopped_at = stage, self.server.start(process), None

    def stop(self) -> None:
        """Asks the process to end: SIGTERM, and SIGKILL when it is asked again five seconds later."""
        if self.stage is None:
            return
        now = time.monotonic()
        if self._stopped_at is None:
            self._stopped_at = now
            self.server.kill(self._handle, signal.SIGTERM)
        elif now - self._stopped_at > _GRACE_S:
            self.server.kill(self._handle, signal.SIGKILL)

    def poll(self) -> StageEnd | None:
        """How the stage has ended, once; None while it runs, and where its record belongs to another node by now."""
        stage = self.stage
        self.server.poll()
        if stage is None or self._handle not in self.server.exits:
            return None
        status, _ = self.server.exits[self._handle]
        self.stage = None
        if status == Exit.DRAINED:
            return None
        stopped = self._stopped_at is not None
        return outcome(stage, status, self.rundir, self.attempt, stopped=stopped, log=self._log(stage))

    def abandon(self) -> None:
        """Ends the process that runs, if any, and leaves the record to others. Takes ten seconds at most."""
        deadline = time.monotonic() + 2 * _GRACE_S
        while self.stage is not None and self._handle not in self.server.exits and time.monotonic() < deadline:
            self.stop()
            time.sleep(_SHORT_S)
            self.server.poll()
        self.stage = None

    async def run(self, stage: Stage, *, stopping: Callable[[], bool]) -> StageEnd:
        """Runs a stage to its end, which comes soon when ``stopping`` says so."""
        self.start(stage)
        while self.stage is not None:
            if stopping():
                self.stop()
            if (end := self.poll()) is not None:
                return end
            await asyncio.sleep(_TICK_S)
        raise AssertionError(f"stage {stage.name} has no fencing token, so none that is out of date")

    def _log(self, stage: Stage) -> str | None:
        return f"{self.logs}/{stage.name}.log" if self.logs else None


class OrderedStages:
    """The stages of one node: does what the coordinator orders, and reports it. Call ``poll`` often.

    Args:
        leaving: set when this node was asked to leave.
    """

    def __init__(self, link: Link, runner: StageRunner, leaving: threading.Event, spec: RunSpec) -> None:
        self.link, self.runner, self.leaving = link, runner, leaving
        self._stages = {stage.name: stage for stage in stages_of(spec)}
        self._order: RunStage | WithdrawStage | None = None
        self._token = 0

    def poll(self) -> None:
        """Starts what was ordered, reports what has ended, ends what was withdrawn."""
        order = self.link.stage
        if order is not None and order != self._order:
            self.runner.abandon()
            self._order = order
            if isinstance(order, RunStage) and not self.leaving.is_set():
                self._token = order.token
                self.runner.start(self._stages[order.stage], token=order.token)
                self.link.send(StageStarted(order.token))
        self._report(self.runner.poll())

    def wait_assignment(self) -> Assign | None:
        """Waits like the link's method and carries out stages meanwhile; a stage that runs at the end is stopped."""
        while True:
            self.poll()
            assigned = self.link.wait_assignment(_POLL_S, self.leaving)
            if assigned is not None or self.link.finished or self.link.failed or self.leaving.is_set():
                break
        if self.leaving.is_set():
            self.link.send(Leaving())  # also where nothing runs: no stage should be ordered any more
            self.leave()
        self.runner.abandon()
        return assigned

    def leave(self) -> None:
        """This node was asked to leave: ends its stage as stopped and says so. Takes ten seconds at most."""
        if self.runner.stage is not None:
            self.link.send(Leaving())  # first, so that the stage is not ordered here again
            deadline = time.monotonic() + 2 * _GRACE_S
            while self.runner.stage is not None and time.monotonic() < deadline:
                self.runner.stop()
                self._report(self.runner.poll())
                time.sleep(_SHORT_S)

    def _report(self, end: StageEnd | None) -> None:
        if end is not None:
            self.link.send(StageEnded(self._token, end.state, end.status, end.cause))


def process_of(
    stage: Stage, *, rundir: RunDir, attempt: int, env: Mapping[str, str | None], log: str | None, token: int | None
) -> Start:
    """The process of a stage."""
    argv = ["--run", rundir.url, "--attempt", str(attempt), "--stage", stage.name]
    argv += ["--token", str(token)] if token is not None else []
    return Start(module="zephon.stages.process", argv=argv, env={"PYTHONUNBUFFERED": "1", **env}, log=log, session=True)


def outcome(stage: Stage, status: int, rundir: RunDir, attempt: int, *, stopped: bool, log: str | None) -> StageEnd:
    """What a stage's exit status means for the run; writes the record where its process could not."""
    record = read_record(rundir, stage.name)
    if status == Exit.DONE:
        ran = record is not None and record.attempt == attempt
        return StageEnd("done" if ran else "skipped", Exit.DONE, f"stage {stage.name} is done")
    if record is None or record.status != "failed" or record.attempt != attempt:  # its process had no time to write it
        error = "stopped" if stopped else f"its process ended with status {status}; see {log or 'the log of its node'}"
        record = record_end(stage, rundir, attempt, status="stopped" if stopped else "failed", error=error)
    if stopped:
        return StageEnd("stopped", Exit.LEFT, f"stopped in stage {stage.name}")
    final = Exit.REFUSED if status == Exit.REFUSED else Exit.FAILED
    return StageEnd("failed", final, f"stage {stage.name} failed: {record.error}")
