"""Stages other than training: one process each, forked from a fork server, and what their ends mean for the run.

On this machine the supervisor carries them out (``carry_out``), on a cluster the node whose turn it is (agent/stage_hand.py).
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from zephon.agent.forkserver import ForkServer, Start
from zephon.agent.membership import Finish
from zephon.exits import Exit, outcome_of
from zephon.run.attempt import place
from zephon.run.checkpoints import newest_checkpoint
from zephon.run.directory import RunDir
from zephon.spec.experiment import RunSpec
from zephon.stages.stage import BUILT_IN, TRAIN, Stage, fingerprint, inputs_of, read_record

_POLL_S = 0.05
_KILL_AFTER_S = 5.0


async def carry_out(
    stage: Stage,
    *,
    server: ForkServer,
    rundir: RunDir,
    attempt: int,
    env: Mapping[str, str | None],
    stopping: Callable[[], bool],
) -> tuple[Finish, str]:
    """Runs a stage to its end and returns how the run goes on, and the stage's state: done, skipped, failed or stopped.

    Args:
        env: added to the process's environment.
        stopping: whether the run was asked to stop; the stage then gets SIGTERM, and SIGKILL five seconds later.
    """
    log = str(place(rundir, attempt) / "logs" / "stages" / f"{stage.name}.log")
    handle = server.start(process_of(stage, rundir=rundir, attempt=attempt, env=env, log=log))
    asked: float | None = None
    while handle not in server.exits:
        server.poll()
        if stopping():
            late = asked is not None and time.monotonic() - asked > _KILL_AFTER_S
            if asked is None or late:
                server.kill(handle, signal.SIGKILL if late else signal.SIGTERM)
            asked = asked or time.monotonic()
        await asyncio.sleep(_POLL_S)
    status, _ = server.exits[handle]
    return outcome(stage, status, rundir, attempt, stopped=asked is not None, log=log)


def process_of(
    stage: Stage, *, rundir: RunDir, attempt: int, env: Mapping[str, str | None], log: str | None, turn: int | None = None
) -> Start:
    """The process of a stage; ``turn`` is the coordinator's number of this try, where nodes take turns."""
    argv = ["--run", rundir.url, "--attempt", str(attempt), "--stage", stage.name]
    argv += ["--turn", str(turn)] if turn is not None else []
    return Start(module="zephon.stages.process", argv=argv, env=env, log=log, session=True)


def outcome(stage: Stage, status: int, rundir: RunDir, attempt: int, *, stopped: bool, log: str | None) -> tuple[Finish, str]:
    """What a stage's exit status means for the run, and the stage's state; writes the record where its process could not."""
    record = read_record(rundir, stage.name) or {}
    if status == Exit.DONE:
        return Finish(Exit.DONE, f"stage {stage.name} is done"), "done" if record.get("attempt") == attempt else "skipped"
    if record.get("status") != "failed" or record["attempt"] != attempt:  # it had no time for words of its own
        error = "stopped" if stopped else f"its process ended with status {status}; see {log or 'the log of its node'}"
        record = record_end(stage, rundir, attempt, status="stopped" if stopped else "failed", error=error)
    if stopped:
        return Finish(Exit.LEFT, f"stopped in stage {stage.name}"), "stopped"
    final = Exit.REFUSED if status == Exit.REFUSED else Exit.FAILED
    return Finish(final, f"stage {stage.name} failed: {record['error']}"), "failed"


def record_end(stage: Stage, rundir: RunDir, attempt: int, *, status: str, error: str) -> dict[str, Any]:
    """Ends the record of a stage whose process had no time for it."""
    record = read_record(rundir, stage.name) or {"name": stage.name, "call": stage.call}
    record |= {"status": status, "attempt": attempt, "ended": time.time(), "error": error}
    rundir.write_json("stages", f"{stage.name}.json", data=record)
    return record


def record_training(rundir: RunDir, attempt: int, spec: RunSpec, *, started: float, finish: Finish) -> None:
    """The record of stage ``train``, beside those of the others."""
    inputs = inputs_of(BUILT_IN[TRAIN], spec, rundir)
    data = {
        "name": TRAIN,
        "call": "",
        "attempt": attempt,
        "started": started,
        "ended": time.time(),
        "status": outcome_of(finish.status),
        "inputs": inputs,
        "inputs_sha256": fingerprint(inputs),
        "outputs": {"step": newest_checkpoint(rundir)},
        "error": "" if finish.status == Exit.DONE else finish.cause,
    }
    rundir.write_json("stages", f"{TRAIN}.json", data=data)
