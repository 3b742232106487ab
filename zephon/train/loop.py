"""The training loop. Copy this page to train something else: only ``session.update`` knows the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from zephon.errors import ZephonError
from zephon.ledger import Ledger, step_digest
from zephon.train.data import GlobalStep
from zephon.train.metrics import Clock, Sink
from zephon.train.session import Session, Update


def train(
    session: Session, *, ledger: Ledger | None, sinks: Sequence[Sink], leaving: Callable[[], bool], generation: int = 0
) -> bool:
    """Trains the steps that are left; True when the run is done, False when somebody asked to leave.

    Args:
        ledger, sinks: what rank 0 writes; None and empty on the others.
        leaving: whether this process was asked to leave; all ranks then finish the same step and save.
    """
    clock, drained = Clock(), False
    for step in session.steps(leaving=leaving, clock=clock):
        update = session.update(step, clock=clock)
        if session.world.first:
            with clock("record"):
                _record(session, step, update, ledger=ledger, sinks=sinks, clock=clock, generation=generation)
        session.judge(update)
        if step.drain or session.step % session.spec.checkpoint.every == 0:
            with clock("save"):
                session.save(wait=step.drain)
        if step.drain:
            drained = True
            break
    if not drained:
        session.save(wait=True)
    session.settle()
    return not drained or session.step == session.spec.trainer.steps


def _record(
    session: Session,
    step: GlobalStep,
    update: Update,
    *,
    ledger: Ledger | None,
    sinks: Sequence[Sink],
    clock: Clock,
    generation: int,
) -> None:
    """Writes one step's lines. An error here is told to all ranks before the next step, and ends them together."""
    digest, lanes = step_digest(step.digests, session.spec.lanes.count)
    seconds, phases = clock.lap()
    size = session.world.seat.size
    values = {
        "loss": update.loss,
        "grad_norm": update.norm,
        "lr": update.rate,
        "tokens": step.tokens,
        "tokens_per_s": step.tokens / seconds,
        "digest": digest.hex(),
        "world_size": size,
        "generation": generation,
        "skipped": update.skipped,
        "seconds": {"step": seconds, **phases},
    }
    try:
        session.job.fence()
        if ledger is not None:
            ledger.append(
                step=step.step,
                digest=digest,
                lanes=lanes,
                tokens=step.by_dataset,
                world_size=size,
                generation=generation,
                loss=None if math.isnan(update.loss) else update.loss,
            )
        for sink in sinks:
            sink.write(step.step, values)
    except (ZephonError, OSError) as error:
        session.fault = error if isinstance(error, ZephonError) else _unwritable(session, error)


def _unwritable(session: Session, error: OSError) -> ZephonError:
    return ZephonError(
        f"the records of step {session.step - 1} could not be written to {session.job.run.url}: {error}",
        follows="the run could no longer prove which data it was trained on",
        remedy="make room or restore access to the run directory, then resume",
    )
