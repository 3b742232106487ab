"""What rank 0 writes of each step: the ledger, the metrics and whoever else wants to know.

Logs are appended to, which object stores cannot do. A ``Mirror`` is the file itself in a local run directory; elsewhere
it is a copy on this node, brought at the start and taken back before every checkpoint and at the end. So the ledger holds
every step of every checkpoint, and what a crash costs is trained, and recorded, again.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from zephon.errors import ZephonError
from zephon.run.directory import RunDir
from zephon.run.ledger import Ledger, step_digest
from zephon.spec.experiment import RunSpec
from zephon.train.evaluation import Result
from zephon.train.metrics import JsonLines, sinks
from zephon.train.session import Session, Update
from zephon.train.step import GlobalStep
from zephon.train.usage import memory
from zephon.types import DropSummary


class Mirror:
    """A file of the run directory as a local path that can be appended to."""

    def __init__(self, run: RunDir, name: str) -> None:
        self._run, self._name, self._pushed = run, name, 0
        self._folder = None if run.local else tempfile.TemporaryDirectory(prefix="zephon-")
        if self._folder is None:
            self.path = Path(run.path(name))
            self.path.parent.mkdir(parents=True, exist_ok=True)
        else:
            self.path = Path(self._folder.name, name)
            if run.exists(name):
                self.path.write_bytes(run.fs.cat_file(run.path(name)))

    def push(self) -> None:
        """Brings the run directory's copy up to date."""
        if self._folder is None or not self.path.exists() or self.path.stat().st_size == self._pushed:
            return
        data = self.path.read_bytes()
        self._run.write_bytes(self._name, data=data)
        self._pushed = len(data)

    def close(self) -> None:
        self.push()
        if self._folder is not None:
            self._folder.cleanup()


class Records:
    """The files of one attempt. Opening may raise ZephonError: a damaged ledger, a tracker that is not installed."""

    def __init__(self, run: RunDir, spec: RunSpec, attempt: int, generation: int) -> None:
        self._run = run
        self._attempt, self._generation, self._lanes = attempt, generation, spec.lanes.count
        self._mirrors = [Mirror(run, "ledger.jsonl"), Mirror(run, "metrics.jsonl")]
        ledger, metrics = (mirror.path for mirror in self._mirrors)
        self._ledger = Ledger(str(ledger))
        self._sinks = [JsonLines(metrics, attempt), *sinks(run, spec, attempt, recorded=self._ledger.steps)]

    def write(self, session: Session, step: GlobalStep, update: Update, held_out: Result | None) -> None:
        """One step. What goes wrong becomes the session's fault: all ranks are told before the next step, and end together."""
        with _told(session), session.clock("record"):
            self._write(session, step, update, held_out)

    def push(self, session: Session) -> None:
        """Before a checkpoint: the run directory has every step so far."""
        try:
            for mirror in self._mirrors:
                mirror.push()
        except OSError as error:
            session.fault = _unwritable(session, error)

    def end(self, session: Session) -> None:
        """Where the data has ended before the last step: how far it went, and what was left out behind it, which no step's
        line can say."""
        said = {"step": session.step, "steps": session.spec.trainer.steps, "attempt": self._attempt}
        with _told(session):
            session.job.fence()
            self._run.write_json("data_end.json", data={**said, "dropped": {}, **named(session.dropped_at_end)})

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
        self._ledger.close()
        for mirror in self._mirrors:
            mirror.close()

    def _write(self, session: Session, step: GlobalStep, update: Update, held_out: Result | None) -> None:
        session.job.fence()
        digest, lanes = step_digest(step.digests, self._lanes)
        said = {"world_size": session.world.seat.size, "generation": self._generation, "loss": update.loss}
        told = {"tokens": step.by_dataset, "attempt": self._attempt, **said, **named(step.dropped)}
        self._ledger.append(step=step.step, digest=digest, lanes=lanes, **told)
        values = {**said, "digest": digest.hex(), **measured(session, step, update)}
        if held_out is not None:
            values |= {"eval_loss": held_out.loss, "eval_tokens": held_out.tokens}
        for sink in self._sinks:
            sink.write(step.step, values)


@contextlib.contextmanager
def _told(session: Session) -> Iterator[None]:
    """What goes wrong inside becomes the session's fault."""
    try:
        yield
    except ZephonError as error:
        session.fault = error
    except OSError as error:
        session.fault = _unwritable(session, error)


def measured(session: Session, step: GlobalStep, update: Update) -> dict[str, Any]:
    """The numbers of one step. Seconds are the host's; on CUDA the device may still be at work behind them."""
    seconds, phases = session.clock.lap()
    if "forward" in phases and "gradients" in phases:
        phases["backward"] = max(0.0, phases.pop("gradients") - phases["forward"])
    speed = step.tokens / seconds
    found: dict[str, Any] = {
        "grad_norm": update.norm,
        "lr": update.rate,
        "tokens": step.tokens,
        "total_tokens": session.tokens,
        "tokens_per_s": speed,
        "skipped": update.skipped,
        "dropped": sum(some.count for some in step.dropped),
        "shares": shares(step.by_dataset),
        "seconds": {"step": seconds, **phases},
        "memory": memory(session.world.device),
    }
    if session.peak is not None:
        found["mfu"] = speed * session.operations / (session.peak * session.world.seat.size)
    return found


def named(dropped: Sequence[DropSummary]) -> dict[str, Any]:
    """``dropped`` of a ledger line, ``{reason: {count, first: [[dataset, shard, row], ...]}}``; nothing where nothing was."""
    if not dropped:
        return {}
    return {"dropped": {some.reason: {"count": some.count, "first": [list(a) for a in some.addresses]} for some in dropped}}


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
