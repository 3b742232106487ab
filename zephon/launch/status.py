"""How a run stands, from its directory alone: state, step, speed, checkpoint, the last error."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from pathlib import Path
from typing import Any

from zephon.errors import ConfigError, nearest
from zephon.exits import Exit
from zephon.launch.control import read_state
from zephon.run.attempt import state_home
from zephon.run.checkpoints import completed_at, newest_checkpoint
from zephon.run.data_end import ended_at
from zephon.run.directory import RunDir
from zephon.run.environment import read_environment
from zephon.run.events import Event, EventReader
from zephon.run.progress import Progress, read_progress
from zephon.run.specs import find_spec

LIVE = ("QUEUED", "STARTING", "RUNNING", "TRAINING", "DRAINING", "DEGRADED", "STALLED", "UNKNOWN")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunStatus:
    """One look at a run.

    Args:
        state: QUEUED, STARTING, RUNNING (a stage other than training), TRAINING, DRAINING, DEGRADED, STALLED, DONE, STOPPED,
            FAILED, or UNKNOWN (cannot tell).
        step, steps: optimizer steps done and wanted.
        eta_s: seconds left at the present speed, when it is known.
        checkpoint, checkpoint_age_s: step and age of the newest complete checkpoint.
        error: what ended or last disturbed the run.
        resize: the last ``resized`` event: sizes, stall, its parts, steps lost.
        stages: each stage's state in this attempt (waiting, running, done, skipped, failed, stopped, interrupted), in order;
            empty where training is all.
    """

    name: str
    url: str
    state: str
    attempt: int
    step: int = 0
    steps: int = 0
    loss: float | None = None
    tokens_per_s: float | None = None
    eta_s: float | None = None
    digest: str = ""
    world_size: int = 0
    nodes: int = 0
    target: int = 0
    generation: int = 0
    checkpoint: int | None = None
    checkpoint_age_s: float | None = None
    progress_age_s: float | None = None
    status: int | None = None
    message: str = ""
    error: str = ""
    failures: int = 0
    lost: int = 0
    resizes: int = 0
    resize: dict[str, Any] | None = None
    stages: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def early(self) -> bool:
        """Whether the run is done before its last step; the message says why."""
        return self.state == "DONE" and self.step < self.steps


def look(rundir: RunDir, *, now: float | None = None, events: EventReader | None = None) -> RunStatus:
    """The status of a run; who looks again and again keeps an ``EventReader`` of it.

    Raises:
        ConfigError: the directory holds no run.
    """
    now = time.time() if now is None else now
    events = events or EventReader(rundir)
    attempts = rundir.attempts()
    name = rundir.root.rstrip("/").rsplit("/", 1)[-1]
    if not attempts:
        raise ConfigError(
            f"{rundir.url} holds no run",
            follows="there is nothing to show",
            remedy="check the name; `zephon list` shows the runs",
        )
    attempt = attempts[-1]
    spec = find_spec(rundir, attempt)
    stepped, progress = _newest_progress(rundir, attempts)
    fresh = progress if stepped == attempt else None
    supervisor = read_state(rundir, attempt, events)
    step, steps = progress.step if progress else 0, spec.trainer.steps if spec else 0
    checkpoint = newest_checkpoint(rundir)
    members = supervisor["members"] if supervisor else []
    counters = (supervisor or {}).get("counters", {})
    age = now - fresh.time if fresh else None
    stall_s = spec.elastic.stall_s if spec else math.inf
    ended = step < steps and ended_at(rundir) == step
    state = _state(
        supervisor, fresh=fresh is not None, age=age, stall_s=stall_s, finished=steps > 0 and (step >= steps or ended)
    )
    message = (supervisor or {}).get("message", "")
    return RunStatus(
        name=name,
        url=rundir.url,
        state=state,
        attempt=attempt,
        step=step,
        steps=steps,
        loss=progress.loss if progress else None,
        tokens_per_s=progress.tokens_per_s if progress else None,
        eta_s=fresh.left_s if fresh else None,
        digest=progress.digest if progress else "",
        world_size=progress.world_size if progress else 0,
        nodes=len(members),
        target=(supervisor or {}).get("target", 0),
        generation=(supervisor or {}).get("generation", 0),
        checkpoint=checkpoint if checkpoint >= 0 else None,
        checkpoint_age_s=now - completed_at(rundir, checkpoint) if checkpoint >= 0 else None,
        progress_age_s=age,
        status=(supervisor or {}).get("status"),
        message=f"the data ended after {step} of {steps} steps" if ended and state == "DONE" else message,
        error=_last_error(events.of_attempt(attempt)),
        failures=counters.get("failures", 0),
        lost=counters.get("lost", 0),
        resizes=counters.get("resizes", 0),
        resize=(supervisor or {}).get("resize"),
        stages=_stages(supervisor or {}),
    )


def _state(supervisor: dict[str, Any] | None, *, fresh: bool, age: float | None, stall_s: float, finished: bool) -> str:
    if supervisor is None:
        return "DONE" if finished else "QUEUED"
    state = str(supervisor["state"])
    if state != "RUNNING":
        return state
    if supervisor.get("stage", "train") not in ("", "train"):
        return "RUNNING"
    if not fresh:
        return "STARTING"
    if len(supervisor["members"]) < supervisor["target"] and not finished:  # after the last step nodes leave one by one
        return "DEGRADED"
    return "STALLED" if age is not None and age > stall_s else "TRAINING"


def _stages(supervisor: dict[str, Any]) -> dict[str, str]:
    """A stage that runs under a supervisor that does not was cut off."""
    over = supervisor.get("state") not in ("STARTING", "RUNNING", "DRAINING")
    found = supervisor.get("stages", [])
    return {name: "interrupted" if over and state == "running" else state for name, state in found}


def _newest_progress(rundir: RunDir, attempts: list[int]) -> tuple[int, Progress | None]:
    """The newest attempt that has made a step, and its progress."""
    for attempt in reversed(attempts):
        if (found := read_progress(rundir, attempt)) is not None:
            return attempt, found
    return 0, None


def _last_error(events: list[Event]) -> str:
    """The newest failure of an attempt in one line: who, how, why."""
    for event in reversed(events):
        details = event.details
        if event.kind in ("stage_ended", "finish") and details["status"] not in (Exit.DONE, Exit.LEFT):
            return str(details["cause"])
        if event.kind == "workers_exited" and details.get("error"):
            error = details["error"]
            return f"rank {error['rank']} on {error['node']}: status {error['status']}: {error['message']}"
    return ""


def find_run(name: str | None, runs: str) -> RunDir:
    """The run directory of a name below ``runs``, of a path, or, without a name, of the run started last.

    Raises:
        ConfigError: there is none; the nearest name is given.
    """
    if name and ("/" in name or "://" in name) and RunDir(name).holds_run():
        return RunDir(absolute(name))
    known = run_names(runs)
    if name in known:
        return RunDir(absolute(f"{runs.rstrip('/')}/{name}"))
    if name is not None and name in run_names(str(records_dir())):
        return RunDir(str(records_dir() / name))
    if name is None and known:
        newest = max(known, key=lambda each: _started(RunDir(f"{runs.rstrip('/')}/{each}")))
        return RunDir(absolute(f"{runs.rstrip('/')}/{newest}"))
    raise ConfigError(
        f"there is no run {name!r} in {runs}" if name else f"there is no run in {runs}",
        follows="there is nothing to work on",
        remedy=(nearest(name, known) if name and known else "start one: zephon run conf=exp1")
        + "; another directory is given by runs=DIR",
    )


def run_names(runs: str) -> list[str]:
    """The names of the runs below a directory."""
    top = RunDir(runs)
    if not top.fs.exists(top.root):
        return []
    names = [str(path).rstrip("/").rsplit("/", 1)[-1] for path in top.fs.ls(top.root, detail=False)]
    return sorted(name for name in names if top.holds_run(name))


def records_dir() -> Path:
    """Where the launcher keeps its record of runs whose directory only the nodes can see."""
    return state_home() / "elsewhere"


def absolute(url: str) -> str:
    """A local path made absolute, so that every process means the same; other URLs as they are."""
    return os.path.abspath(Path(url).expanduser()) if "://" not in url else url


def _started(rundir: RunDir) -> float:
    attempts = rundir.attempts()
    found = read_environment(rundir, attempts[-1]) if attempts else None
    return found.time if found else 0.0
