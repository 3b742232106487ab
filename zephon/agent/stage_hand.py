"""A node's hand in the stages: one process at a time, forked from the agent's fork server, on the coordinator's order.

    agent <- {"stage", stage, turn}     stage "" withdraws: another node has the turn
    agent -> {"staging", turn}  {"staged", turn, state, status, cause}

It is polled by the agent's main thread while the node waits for its place, and again when its workers have done the last step.
"""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

from zephon.agent.forkserver import ForkServer
from zephon.agent.link import Link
from zephon.agent.stage_runner import outcome, process_of
from zephon.exits import Exit
from zephon.run.directory import RunDir
from zephon.spec.experiment import RunSpec
from zephon.stages.stage import Stage, stages_of

_POLL_S = 0.1
_GRACE_S = 5.0


class StageHand:
    """Call ``poll`` often.

    Args:
        leaving: set when this node was asked to leave.
        logs: directory below which each stage gets ``stages/NAME.log``; None leaves it on the agent's own output.
    """

    def __init__(
        self,
        link: Link,
        server: ForkServer,
        leaving: threading.Event,
        *,
        spec: RunSpec,
        rundir: RunDir,
        attempt: int,
        logs: str | None,
    ) -> None:
        self.link, self.server, self.leaving = link, server, leaving
        self.rundir, self.attempt, self.logs = rundir, attempt, logs
        self._stages: dict[str, Stage] = {stage.name: stage for stage in stages_of(spec)}
        self._turn = 0
        self._stage: Stage | None = None
        self._handle = 0
        self._log: str | None = None

    def poll(self) -> None:
        """Starts what was ordered, reports what has ended, ends what was withdrawn."""
        order = self.link.stage
        if order is not None and order["turn"] != self._turn:
            self._end()
            self._turn, self._stage = order["turn"], None
            if order["stage"] and not self.leaving.is_set():
                self._begin(self._stages[order["stage"]])
        if self._stage is not None:
            self.server.poll()
            if self._handle in self.server.exits:
                self._report(stopped=False)

    def wait_assignment(self) -> dict[str, Any] | None:
        """As the link's, working off stages meanwhile; what runs at its end is ended."""
        while True:
            self.poll()
            assigned = self.link.wait_assignment(_POLL_S, self.leaving)
            if assigned is not None or self.link.finished or self.link.failed or self.leaving.is_set():
                break
        if self.leaving.is_set():
            self.link.send("leaving")  # also where nothing runs: no turn should come any more
            self.leave()
        self._end()
        return assigned

    def leave(self) -> None:
        """This node was asked to leave: ends its stage as stopped and says so. Takes ten seconds at most."""
        if self._stage is not None:
            self.link.send("leaving")  # first, so that the turn does not come back
            self._end()
            self._report(stopped=True)

    def _begin(self, stage: Stage) -> None:
        self._stage, self._log = stage, f"{self.logs}/stages/{stage.name}.log" if self.logs else None
        what = process_of(
            stage,
            rundir=self.rundir,
            attempt=self.attempt,
            env={"PYTHONUNBUFFERED": "1"},
            log=self._log,
            turn=self._turn,
        )
        self._handle = self.server.start(what)
        self.link.send("staging", turn=self._turn)

    def _report(self, *, stopped: bool) -> None:
        stage, (status, _) = self._stage, self.server.exits.get(self._handle, (-9, 0.0))
        self._stage = None
        if stage is None or status == Exit.DRAINED:
            return
        finish, state = outcome(stage, status, self.rundir, self.attempt, stopped=stopped, log=self._log)
        self.link.send("staged", turn=self._turn, state=state, status=finish.status, cause=finish.cause)

    def _end(self) -> None:
        """Ends the process that runs, if any: SIGTERM, SIGKILL after five seconds."""
        for sig in (signal.SIGTERM, signal.SIGKILL):
            if self._stage is None or self._handle in self.server.exits:
                return
            self.server.kill(self._handle, sig)
            deadline = time.monotonic() + _GRACE_S
            while self._handle not in self.server.exits and time.monotonic() < deadline:
                time.sleep(0.02)
                self.server.poll()
