"""What rank 0 writes of each step: the ledger, the metrics and every other sink."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from zephon.errors import ZephonError
from zephon.run import ledger as ledger_file
from zephon.run import metrics as metrics_file
from zephon.run.data_end import DataEnd, write_data_end
from zephon.run.directory import RunDir
from zephon.run.lane_cursors import MovedCursors
from zephon.run.ledger import Ledger, add_dropped, step_digest
from zephon.run.metrics import DroppedSoFar, MetricsFile, StepValues
from zephon.run.mirror import Mirror
from zephon.run.progress import drain_warning
from zephon.spec.experiment import RunSpec
from zephon.train.evaluation import Result
from zephon.train.metrics import ProgressFile, sinks
from zephon.train.session import Session
from zephon.train.shares import RealizedShares
from zephon.train.step import GlobalStep
from zephon.train.update import Update
from zephon.train.usage import memory
from zephon.types import DropSummary, Json

FENCE_INTERVAL_S = 2.0  # on far storage, where every look is a request


class Records:
    """The files of one attempt. Opening may raise ZephonError: a damaged ledger, a tracker that is not installed."""

    def __init__(self, run: RunDir, spec: RunSpec, attempt: int, generation: int, *, fence: Callable[[], None]) -> None:
        self._run = run
        self._attempt, self._generation, self._lanes = attempt, generation, spec.lanes.count
        self._mirrors = [Mirror(run, name, fence=fence) for name in (ledger_file.FILE, metrics_file.FILE)]
        self._timed: float | None = None
        self._dropped: dict[str, DroppedSoFar] | None = None  # of the whole run, once a step is written
        self._fenced, self._fence_interval = -math.inf, 0.0 if run.local else FENCE_INTERVAL_S
        ledger, metrics = (mirror.path for mirror in self._mirrors)
        self._ledger = Ledger(str(ledger))
        self._moved = MovedCursors()
        self._shares = RealizedShares(run, spec)
        self._sinks = [MetricsFile(metrics, attempt), *sinks(run, spec, attempt, recorded=self._ledger.steps)]

    def go_on(self, generation: int) -> None:
        """The process that writes stays the one in another generation."""
        self._generation = generation
        for sink in self._sinks:
            if isinstance(sink, ProgressFile):
                sink.go_on(self._ledger.steps)

    @property
    def steps(self) -> int:
        """How many steps are recorded."""
        return self._ledger.steps

    def write_missed(self, session: Session) -> bool:
        """Writes the newest step of the state, where the rank that recorded was lost before it did; whether there was one."""
        missed = session.last is not None and session.last[0].step == self._ledger.steps == session.step - 1
        if missed and session.last is not None:
            self.write(session, *session.last, None)
        return missed

    def bring(self) -> None:
        """Brings the run directory up to date before others read it there; what cannot be brought is told at the next save."""
        with contextlib.suppress(OSError, ZephonError):
            for mirror in self._mirrors:
                mirror.push()

    def write(self, session: Session, step: GlobalStep, update: Update, held_out: Result | None) -> None:
        """One step. An error becomes the session's fault: all ranks receive it before the next step, and end together."""
        with _faults_of(session), session.clock("record"):
            self._write(session, step, update, held_out)

    def push(self, session: Session) -> None:
        """Before a checkpoint: the run directory has every step so far."""
        with _faults_of(session):
            for mirror in self._mirrors:
                mirror.push()

    def end(self, session: Session) -> None:
        """Where the data ended before the last step: how far it went, and what was dropped after the last batch, which belongs
        to no step's line."""
        end = DataEnd(
            step=session.step,
            steps=session.spec.trainer.steps,
            attempt=self._attempt,
            dropped=named(session.dropped_at_end).get("dropped", {}),
        )
        with _faults_of(session):
            session.job.fence()
            write_data_end(self._run, end)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
        self._ledger.close()
        for mirror in self._mirrors:
            mirror.close()

    def _write(self, session: Session, step: GlobalStep, update: Update, held_out: Result | None) -> None:
        if time.monotonic() - self._fenced >= self._fence_interval:
            session.job.fence()
            self._fenced = time.monotonic()
        digest, lanes = step_digest(step.digests, self._lanes)
        self._ledger.append(
            step=step.step,
            digest=digest,
            lanes=lanes,
            tokens=step.by_dataset,
            attempt=self._attempt,
            world_size=session.membership.process.size,
            generation=self._generation,
            loss=update.loss,
            **named(step.dropped),
            **self._moved.of(step.state["lanes"]),
        )
        values = measured(session, step, update, digest=digest.hex(), generation=self._generation)
        if self._dropped is None:
            self._dropped = self._ledger.dropped_before(step.step)
        add_dropped(self._dropped, named(step.dropped).get("dropped", {}))
        if self._dropped:
            values["dropped_so_far"] = self._dropped
        if held_out is not None:
            values["eval_loss"], values["eval_tokens"] = held_out.loss, held_out.tokens
            values["eval_losses"] = {name: loss.mean for name, loss in held_out.datasets.items()}
        self._shares.add(step.step, step.by_dataset)
        values["realized"], values["targets"] = self._shares.realized, self._shares.targets
        for sink in self._sinks:
            sink.write(step.step, values)
        if drift := self._shares.drift():
            session.job.log(drift)
        if session.saver.seconds != self._timed:
            self._timed, limit = session.saver.seconds, session.spec.elastic.drain_s
            if warning := drain_warning(save_s=self._timed, step_s=values["seconds"]["step"], drain_s=limit):
                session.job.log(warning)


@contextlib.contextmanager
def _faults_of(session: Session) -> Iterator[None]:
    """An error inside becomes the session's fault."""
    try:
        yield
    except ZephonError as error:
        session.fault = error
    except OSError as error:
        session.fault = _unwritable(session, error)


def measured(session: Session, step: GlobalStep, update: Update, *, digest: str, generation: int) -> StepValues:
    """The numbers of one step. Seconds are the host's; on CUDA the device may still be at work when they end."""
    seconds, phases = session.clock.lap()
    if "forward" in phases and "gradients" in phases:
        phases["backward"] = max(0.0, phases.pop("gradients") - phases["forward"])
    speed = step.tokens / seconds
    values: StepValues = {
        "time": time.time(),
        "world_size": session.membership.process.size,
        "generation": generation,
        "loss": update.loss,
        "digest": digest,
        "grad_norm": update.norm,
        "lr": update.rate,
        "tokens": step.tokens,
        "total_tokens": session.tokens,
        "tokens_per_s": speed,
        "skipped": update.skipped,
        "dropped": sum(summary.count for summary in step.dropped),
        "shares": shares(step.by_dataset),
        "dataset_loss": {name: loss.mean for name, loss in update.datasets.items()},
        "dataset_tokens": {name: loss.tokens for name, loss in update.datasets.items()},
        "packed": {"rows": step.packed.rows, "segments": step.packed.segments, "padding": step.packed.padding},
        "seconds": {"step": seconds, **phases},
        "memory": memory(session.membership.device),
    }
    if session.saver.seconds is not None:
        values["save_s"] = session.saver.seconds
    if session.peak is not None:
        values["mfu"] = speed * session.operations / (session.peak * session.membership.process.size)
    return values


def named(dropped: Sequence[DropSummary]) -> Json:
    """``dropped`` of a ledger line, ``{reason: {count, tokens, first: [[dataset, shard, row], ...]}}``; empty where none is.

    Documents that were dropped before they were tokenized have no tokens.
    """
    if not dropped:
        return {}
    return {
        "dropped": {
            summary.reason: {
                "count": summary.count,
                **({"tokens": summary.tokens} if summary.tokens else {}),
                "first": [list(a) for a in summary.addresses],
            }
            for summary in dropped
        }
    }


def shares(tokens: Mapping[str, int]) -> dict[str, float]:
    """Each dataset's part of the step's tokens."""
    total = sum(tokens.values())
    return {name: count / total for name, count in tokens.items()}


def _unwritable(session: Session, error: OSError) -> ZephonError:
    return ZephonError(
        f"the records of step {session.step - 1} could not be written to {session.job.run.url}: {error}",
        follows="the run could no longer prove which data it was trained on",
        remedy="make room or restore access to the run directory, then resume",
    )
