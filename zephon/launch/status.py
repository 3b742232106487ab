"""The status of a run: state, step, speed, checkpoint, the last error; from its directory and from its backend."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from zephon.errors import ConfigError, nearest
from zephon.exits import Exit
from zephon.launch.backends.registry import backend_of
from zephon.run.attempt import state_home
from zephon.run.checkpoints import completed_at, newest_checkpoint
from zephon.run.data_end import ended_at
from zephon.run.directory import RunDir
from zephon.run.environment import read_environment
from zephon.run.events import Event, EventReader
from zephon.run.lease import read_lease
from zephon.run.progress import Progress, drain_warning, read_progress
from zephon.run.specs import find_spec
from zephon.run.state import AttemptState, Resized
from zephon.spec.experiment import RunSpec

LIVE = ("QUEUED", "STARTING", "RUNNING", "TRAINING", "DRAINING", "DEGRADED", "STALLED", "UNKNOWN", "ELSEWHERE")
_ONE_LOSS_S = 120.0  # a node's end and what its peers report of it within this time are one event


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunStatus:
    """The state of a run at one moment.

    Args:
        app_id: the newest attempt's name where it runs; empty where it was never started.
        state: UNSUBMITTED, QUEUED, STARTING, RUNNING (a stage other than training), TRAINING, DRAINING, DEGRADED, STALLED,
            DONE, STOPPED, FAILED, GONE; UNKNOWN (the cluster does not say) or ELSEWHERE (another cluster
            has it): see run/state.py.
        step, steps: optimizer steps done and wanted.
        eta_s, pace_s: seconds left at the present speed, and seconds per step, where they are known.
        lr: learning rate of the newest step.
        event, event_age_s: what happened last in the attempt, in words, and how long ago.
        checkpoint, checkpoint_age_s: step and age of the newest complete checkpoint.
        notes: what else the cluster says of the attempt now, a sentence each.
        error: what ended or last disturbed the run; in a loss, what happened to its victim.
        also: what others saw of the same.
        dropped: documents and tokens that the run has dropped so far, by reason, as a line of text each.
        warning: why a drain may lose steps, by what the newest save took.
        started, took_s: when the newest attempt was started, and how long it runs or ran.
        resize: the last ``resized`` event: sizes, stall, its parts, steps lost.
        realized, targets: each dataset's part of the newest steps' tokens, and what it should be.
        stages: each stage's state in this attempt (waiting, running, done, skipped, failed, stopped, interrupted, not run),
            in order; empty where training is all.
    """

    name: str
    url: str
    app_id: str
    state: str
    attempt: int
    step: int = 0
    steps: int = 0
    loss: float | None = None
    tokens_per_s: float | None = None
    eta_s: float | None = None
    pace_s: float | None = None
    lr: float | None = None
    event: str = ""
    event_age_s: float | None = None
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
    notes: tuple[str, ...] = ()
    error: str = ""
    also: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    warning: str = ""
    failures: int = 0
    lost: int = 0
    resizes: int = 0
    started: float | None = None
    took_s: float | None = None
    resize: Resized | None = None
    realized: dict[str, float] = dataclasses.field(default_factory=dict)
    targets: dict[str, float] = dataclasses.field(default_factory=dict)
    stages: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def live(self) -> bool:
        """Whether an attempt is under way, so that another one may not be started."""
        return self.state in LIVE and self.app_id != ""

    @property
    def early(self) -> bool:
        """Whether the run is done before its last step; the message says why."""
        return self.state == "DONE" and self.step < self.steps


def status_of(rundir: RunDir, *, now: float | None = None, events: EventReader | None = None) -> RunStatus:
    """The status of a run. A caller that asks repeatedly passes the same ``EventReader``, which reads each event once.

    Raises:
        ConfigError: the directory holds no run.
    """
    now, events = time.time() if now is None else now, events or EventReader(rundir)
    attempts = rundir.attempts()
    if not attempts:
        raise ConfigError(
            f"{rundir.url} holds no run",
            follows="there is nothing to show",
            remedy="check the name; `zephon list` shows the runs",
        )
    attempt = attempts[-1]
    spec, (stepped, progress) = find_spec(rundir, attempt), _newest_progress(rundir, attempts)
    submitted = backend_of(rundir, attempt).state(rundir, attempt, events)
    state = submitted or _unsubmitted(rundir)
    steps = spec.trainer.steps if spec else 0
    ended_early = progress.step < steps and ended_at(rundir) == progress.step
    finished = steps > 0 and (progress.step >= steps or ended_early)
    age = now - progress.time if stepped == attempt else None
    stalled = age is not None and spec is not None and age > spec.elastic.stall_s
    shown = _shown(state, stepped=age is not None, stalled=stalled, finished=finished) if submitted or not finished else "DONE"
    checkpoint = newest_checkpoint(rundir)
    ended = f"the data ended after {progress.step} of {steps} steps"
    happened = events.of_attempt(attempt)
    causes = _causes(happened)
    started = happened[0].time if happened else None
    last = now if shown in LIVE else max([event.time for event in happened[-1:]] + [progress.time if age is not None else 0.0])
    return RunStatus(
        name=rundir.root.rstrip("/").rsplit("/", 1)[-1],
        url=rundir.url,
        app_id=state.app_id,
        state=shown,
        attempt=attempt,
        step=progress.step,
        steps=steps,
        loss=progress.loss,
        tokens_per_s=progress.tokens_per_s,
        eta_s=progress.left_s if age is not None else None,
        pace_s=progress.pace_s if age is not None else None,
        lr=progress.lr,
        event=happened[-1].kind.replace("_", " ") if happened else "",
        event_age_s=now - happened[-1].time if happened else None,
        digest=progress.digest,
        realized=progress.realized,
        targets=progress.targets,
        world_size=progress.world_size,
        nodes=len(state.members),
        target=state.target,
        generation=state.generation,
        checkpoint=checkpoint if checkpoint >= 0 else None,
        checkpoint_age_s=now - completed_at(rundir, checkpoint) if checkpoint >= 0 else None,
        progress_age_s=age,
        status=state.status,
        message=ended if ended_early and shown == "DONE" else state.message,
        notes=state.notes,
        error=causes[0] if causes else "",
        also=causes[1:],
        dropped=tuple(_dropped(progress)),
        warning=_drain_warning(progress, spec) if not state.ended and stepped == attempt else "",
        failures=state.counts.failures,
        lost=state.counts.lost,
        resizes=state.counts.resizes,
        started=started,
        took_s=None if started is None else last - started,
        resize=state.resized,
        stages=_stages(state),
    )


def _unsubmitted(rundir: RunDir) -> AttemptState:
    """An attempt that no backend has: it is being submitted, or its submit was cut off."""
    lease = read_lease(rundir)
    if lease is not None and lease.binds and not lease.ours:
        return AttemptState(app_id="", state="STARTING", message=f"being submitted by {lease.holder}")
    return AttemptState(app_id="", state="UNSUBMITTED", message="it was never submitted; resume starts it")


def _shown(state: AttemptState, *, stepped: bool, stalled: bool, finished: bool) -> str:
    """The attempt's state; its stage, its steps and its members say what RUNNING means."""
    if state.state != "RUNNING":
        return state.state
    if state.stage not in ("", "train"):
        return "RUNNING"
    if not stepped:
        return "STARTING"
    if len(state.members) < state.target and not finished:  # after the last step nodes leave one by one
        return "DEGRADED"
    return "STALLED" if stalled else "TRAINING"


def _stages(state: AttemptState) -> dict[str, str]:
    """In an attempt that has ended, a stage that was running is interrupted, and nothing waits any more."""
    ended = {"running": "interrupted", "waiting": "not run"} if state.ended else {}
    return {name: ended.get(stage, stage) for name, stage in state.stages.items()}


def _newest_progress(rundir: RunDir, attempts: Sequence[int]) -> tuple[int, Progress]:
    """The newest attempt that has made a step, and its progress; attempt 0 where none has."""
    for attempt in reversed(attempts):
        if (progress := read_progress(rundir, attempt)) is not None:
            return attempt, progress
    return 0, Progress(step=0, steps=0, time=0.0)


def _drain_warning(progress: Progress, spec: RunSpec | None) -> str:
    if spec is None:
        return ""
    return drain_warning(save_s=progress.save_s, step_s=progress.pace_s, drain_s=spec.elastic.drain_s)


def _dropped(progress: Progress) -> Iterator[str]:
    """``pack_flat: longer than max_length: 31 documents, 530,112 tokens (96.4%)``"""
    for reason, some in sorted(progress.dropped.items()):
        tokens = some["tokens"]
        share = f", {tokens:,} tokens ({tokens / (tokens + progress.tokens):.1%})" if tokens else ""
        yield f"{reason}: {some['documents']:,} documents{share}"


def _causes(events: Sequence[Event]) -> tuple[str, ...]:
    """The newest failure of an attempt, who, how and why: first what happened to a node, then what others saw of it."""
    witness = next(filter(None, map(_failure, reversed(events))), None)
    victims = [event for event in events if event.kind in ("node_ended", "node_refused")]
    if not victims:
        return (witness[1],) if witness else ()
    victim = victims[-1]
    when, cause = _time_of(victim), str(victim.details["cause"])
    if witness is None:
        return (cause,)
    finish = next((event for event in reversed(events) if event.kind == "finish"), None)
    if finish is not None and f"exit code {finish.details['status']} (" in cause and when >= int(finish.time):
        return (witness[1],)  # the node ended as the job did, because the job had ended
    return (cause, witness[1]) if when >= witness[0] - _ONE_LOSS_S else (witness[1],)


def _failure(event: Event) -> tuple[float, str] | None:
    """When and how a worker, a stage or the job failed."""
    details = event.details
    if event.kind in ("stage_ended", "finish") and details["status"] not in (Exit.DONE, Exit.LEFT):
        return event.time, str(details["cause"])
    if event.kind == "drain_failed":
        return event.time, str(details["cause"])
    if event.kind == "workers_exited" and details.get("error"):
        error = details["error"]
        return event.time, f"rank {error['rank']} on {error['node']}: status {error['status']}: {error['message']}"
    return None


def _time_of(event: Event) -> float:
    """When a node ended; its event is written when somebody looks."""
    ended = str(event.details.get("ended") or "")
    return datetime.fromisoformat(ended.replace("Z", "+00:00")).timestamp() if ended else event.time


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
        newest = max(known, key=lambda run: _started(RunDir(f"{runs.rstrip('/')}/{run}")))
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
    environment = read_environment(rundir, attempts[-1]) if attempts else None
    return environment.time if environment else 0.0
