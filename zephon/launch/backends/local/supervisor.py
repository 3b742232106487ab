"""The local scheduler's detached process: owns one attempt on this machine, from the first node to the last.

    supervisor (own session, no torch) ── coordinator, control port, lease
      └── fork server (everything imported once)
            ├── node-0: python -m zephon.agent ── its own fork server ── workers
            └── node-1: ...

It survives the terminal, replaces nodes that die, and ends every process when it ends, also by kill -9: each process asks
the kernel to die with its parent. ``supervisor.json`` holds its state; a lock on ``supervisor.lock`` shows that it lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from zephon.agent.door import Channel, Door
from zephon.agent.entry import modules_for
from zephon.agent.forkserver import ForkServer
from zephon.agent.stage_runner import StageRunner
from zephon.agent.training import TICK_S, Training
from zephon.errors import ConfigError, ZephonError
from zephon.exits import Exit, outcome_of
from zephon.launch.backends.local.commands import Command, Stop, decode, encode_reply
from zephon.launch.backends.local.gpus import gpus_of_node
from zephon.launch.backends.local.nodes import Nodes
from zephon.run.attempt import hand_in_logs, logs_of
from zephon.run.checkpoints import newest_checkpoint
from zephon.run.directory import RunDir
from zephon.run.events import EventLog
from zephon.run.lease import RENEW_S, Lease
from zephon.run.secret import forget_secret, make_secret
from zephon.run.specs import read_spec
from zephon.run.state import AttemptState, Counts, Resized, State, ended_as, write_state
from zephon.run.supervisor_files import ControlPort, LocalRequest, hold_supervisor_lock, read_request, write_control_port
from zephon.stages.record import record_training
from zephon.stages.stage import TRAIN, Stage, stages_of
from zephon.stages.walk import StageEnd, Walk

_COMMAND_S = 5.0


class Supervisor:
    """Runs one request to its end. ``run`` returns the exit status of the job."""

    def __init__(self, request: LocalRequest) -> None:
        self.request = request
        self.rundir = RunDir(request.run)
        self.logs = logs_of(self.rundir, request.attempt)
        self.spec = read_spec(self.rundir, request.attempt)
        self.events = EventLog(self.rundir, request.attempt, "supervisor")
        self.lease = Lease(self.rundir, holder=request.app_id, token=request.lease)
        self.training = Training(self.rundir, request.attempt, self.spec, target=request.nodes)
        self.state: State = "STARTING"
        self.message = ""
        self.status: int | None = None
        self.nodes = Nodes(request, self.spec, self.events, self.logs)
        self._written: AttemptState | None = None
        self._server: ForkServer
        self._keeping: asyncio.Future[None]
        self.walk = Walk(stages_of(self.spec))

    def run(self) -> int:
        """Takes the lease, starts the nodes and serves until the end.

        Raises:
            ConfigError: another process holds the run.
        """
        self.lease.take()
        if sys.platform.startswith("linux"):
            for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):  # all nodes are on this machine: no port for any other
                os.environ.setdefault(name, "lo")
        log = str(self.logs / "forkserver.log")
        self._server = ForkServer.fork([*modules_for(self.request.worker), "zephon.agent.entry"], log=log)
        try:
            status = asyncio.run(self._serve())
        except OSError as error:
            where = f": {error.filename}" if error.filename else ""
            self._write("FAILED", f"{error.strerror or error}{where}", Exit.FAILED)
            raise
        except BaseException as error:
            self._write("FAILED", f"supervisor: {type(error).__name__}: {error}", Exit.FAILED)
            raise
        finally:
            self._server.close()
            self.lease.release()
        return status

    async def _serve(self) -> int:
        loop = asyncio.get_running_loop()
        for sig in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sig, self.stop)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        control = Door("control", self._control)
        await control.open("127.0.0.1", 0, make_secret(self.rundir, self.request.attempt))
        write_control_port(self.rundir, self.request.attempt, ControlPort(control.port))
        self.events.write("supervisor_started", pid=os.getpid(), nodes=self.nodes.target)
        self._write("STARTING", "importing")
        self._keeping = asyncio.ensure_future(self._keep())
        finish = await self._carry_out()
        await _cancelled(self._keeping)
        control.close()
        self._server.close()
        forget_secret(self.rundir, self.request.attempt)
        hand_in_logs(self.rundir, self.request.attempt)
        self.lease.release()  # before the end is written: its reader may start the run again at once
        self._write(ended_as(finish.status), finish.cause, finish.status)
        self.events.write("supervisor_ended", status=finish.status, cause=finish.cause)
        return finish.status

    async def _carry_out(self) -> StageEnd:
        """All stages in order, until one does not end well."""
        while (stage := self.walk.next(trained=newest_checkpoint(self.rundir) >= self.spec.trainer.steps)) is not None:
            if self.nodes.stopping:
                self.walk.stop()
                continue
            self.walk.begin()
            self.walk.end(await (self._train() if stage.name == TRAIN else self._other(stage)))
            self._write_changes()
        assert self.walk.finish is not None
        return self.walk.finish

    async def _other(self, stage: Stage) -> StageEnd:
        self._write("RUNNING", f"stage {stage.name}")
        self.events.write("stage_started", stage=stage.name)
        env: dict[str, str | None] = {"ZEPHON_APP_ID": self.request.app_id, "PYTHONUNBUFFERED": "1"}
        if self.request.gpus:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(gpus_of_node(self.request.gpus, 0, self.spec.elastic.procs_per_node))
        logs = str(self.logs / "stages")
        runner = StageRunner(self._server, rundir=self.rundir, attempt=self.request.attempt, env=env, logs=logs)
        end = await runner.run(stage, stopping=self._must_end)
        self.events.write("stage_ended", stage=stage.name, state=end.state, status=end.status, cause=end.cause)
        self.message = ""
        return end

    def _must_end(self) -> bool:
        """Whether a stop was asked for. Raises the error that ended ``_keep``."""
        if self._keeping.done():
            self._keeping.result()
        return self.nodes.stopping

    async def _train(self) -> StageEnd:
        """The nodes, from the first one's start to the last one's end."""
        started = time.time()
        if not self.walk.alone:  # waiting times of the first object have run since the first stage
            self.training = Training(self.rundir, self.request.attempt, self.spec, target=self.nodes.target)
        await self.training.start("127.0.0.1", 0)
        deciding = asyncio.ensure_future(self.training.run())
        self.nodes.begin(self._server, self.training)
        self._write("RUNNING")
        while not deciding.done() and (self.nodes or not self.nodes.stopping) and not self.nodes.at_once:
            self._must_end()
            self.nodes.watch()
            self._write_changes()
            await asyncio.sleep(0.05)
        finish = deciding.result() if deciding.done() else None
        await self.nodes.end()
        await asyncio.sleep(2 * TICK_S)  # until it is decided what the last node's end was
        await _cancelled(deciding)
        failure = self.training.drain_failure()
        await self.training.close()
        end = StageEnd("failed", Exit.FAILED, failure) if failure else StageEnd("stopped", Exit.LEFT, "stopped")
        if finish is not None:
            end = StageEnd(outcome_of(finish.status), finish.status, finish.cause)
        if not self.walk.alone:
            record_training(self.rundir, self.request.attempt, self.spec, started=started, end=end)
        return end

    async def _keep(self) -> None:
        """Renews the lease and the state file. A lost lease ends the attempt: somebody else may write now."""
        while True:
            self.lease.renew()
            self._write()
            await asyncio.sleep(RENEW_S)

    def stop(self) -> None:
        """Drains: every agent is asked to leave; one that has not left in time is killed.

        Where no generation is formed nothing trains, and a node that still imports would not hear of it for seconds.
        """
        if self.nodes.stopping:
            return
        self.events.write("stop")
        self.nodes.stop(at_once=not self.training.membership.active)
        self._write("DRAINING", "stop was asked for")

    def rescale(self, nodes: int) -> None:
        """Sets a new target; nodes start or leave at once.

        Raises:
            ConfigError: outside the elastic range, not a division of the lanes, or another change is under way.
        """
        if self.walk.stage != TRAIN:
            raise ConfigError(
                f"the run is in stage {self.walk.stage or 'waiting'}, which has no nodes",
                follows="there would be nothing to divide",
                remedy="repeat the command when it trains; `status` shows its stages",
            )
        rules = self.training.membership.rules
        if self.nodes.stopping:
            raise ConfigError(
                f"the run is being stopped, so nodes={nodes} cannot be set",
                follows="the new nodes would be stopped at once",
                remedy="wait until it has stopped, then resume it with nodes=",
            )
        if not rules.minimum <= nodes <= rules.maximum or not rules.allowed(nodes):
            fits = [n for n in range(rules.minimum, rules.maximum + 1) if rules.allowed(n)]
            raise ConfigError(
                f"nodes={nodes} is not possible for this run",
                follows="the lanes could not be divided among the nodes, or the elastic range would be left",
                remedy=f"use one of nodes={', '.join(map(str, fits))}" + ("; to end the run use stop" if nodes == 0 else ""),
            )
        if not self._settled() and nodes != self.nodes.target:
            raise ConfigError(
                f"a change to nodes={self.nodes.target} has not settled yet",
                follows="two changes at once would make the membership unpredictable",
                remedy="repeat the command in a moment; `status` shows when the run is settled",
            )
        gpus_of_node(self.request.gpus, nodes - 1, self.spec.elastic.procs_per_node)
        self.events.write("rescale", nodes=nodes)
        self.training.membership.rescale(nodes, time.monotonic())
        self.nodes.resize(nodes)
        self._write()

    def _settled(self) -> bool:
        members = self.training.membership
        return members.active and members.rerendezvous is None and len(members.members) == self.nodes.target

    async def _control(self, connection: Channel) -> None:
        """Carries out the one command of a connection."""
        try:
            async with asyncio.timeout(_COMMAND_S):
                command = decode(await connection.receive())
                connection.send(encode_reply(self._carry_out_command(command)))
                await connection.drain()
        except (TimeoutError, ValueError, TypeError, ConnectionError):
            pass  # a stray or broken connection changes nothing
        finally:
            connection.close()

    def _carry_out_command(self, command: Command) -> ZephonError | None:
        """The error with which the command is refused, if it is."""
        try:
            if isinstance(command, Stop):
                self.stop()
            else:
                self.rescale(command.nodes)
        except ZephonError as error:
            return error
        return None

    def _write_changes(self) -> None:
        """Writes the state if it has changed."""
        if self._facts() != self._written:
            self._write()

    def _facts(self) -> AttemptState:
        members, resized = self.training.membership, self.training.last_resize
        counters = members.counters
        return AttemptState(
            app_id=self.request.app_id,
            state=self.state,
            message=self.message,
            status=self.status,
            target=self.nodes.target,
            members=tuple(name for name in members.members if name in members.nodes) if members.active else (),
            generation=members.generation,
            resized=Resized.from_json(resized) if resized is not None else None,
            counts=Counts(failures=counters.failures, lost=counters.lost, resizes=counters.resizes),
            stage=self.walk.stage,
            stages={} if self.walk.alone else dict(self.walk.states),
            pid=os.getpid(),
            agents=self.nodes.pids(),
        )

    def _write(self, state: State | None = None, message: str | None = None, status: int | None = None) -> None:
        self.state = state or self.state
        self.message = message if message is not None else self.message
        self.status = status if status is not None else self.status
        before, self._written = self._written, self._facts()
        state_now = dataclasses.replace(self._written, time=time.time())
        write_state(self.rundir, self.request.attempt, state_now, copy=before != self._written)


async def _cancelled(task: asyncio.Future[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def main(argv: list[str] | None = None) -> int:
    """``python -m zephon.launch.backends.local.supervisor REQUEST.json``: detaches, then supervises."""
    path = Path(*(sys.argv[1:] if argv is None else argv))
    request = read_request(path)
    if os.fork() > 0:
        os._exit(0)  # the launcher waits for this process only, so no zombie remains
    os.setsid()
    try:
        hold_supervisor_lock(path.parent)
        return Supervisor(request).run()
    except ZephonError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_status
    except Exception:  # noqa: BLE001 - the last line of the process: the log must say why it ended
        traceback.print_exc()
        return Exit.FAILED


if __name__ == "__main__":
    sys.exit(main())
