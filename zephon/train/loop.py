"""The training loop. Copy this page to train something else: only the session knows the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from zephon.errors import ZephonError
from zephon.ledger import Ledger, step_digest
from zephon.train.data import GlobalStep
from zephon.train.evaluation import Evaluation, Result
from zephon.train.metrics import Sink
from zephon.train.session import Session, Update
from zephon.train.usage import memory


def train(
    session: Session, *, ledger: Ledger | None, sinks: Sequence[Sink], leaving: Callable[[], bool], generation: int = 0
) -> bool:
    """Trains the steps that are left; True when the run is done, False when somebody asked to leave.

    Args:
        ledger, sinks: what rank 0 writes; None and empty on the others.
        leaving: whether this process was asked to leave; all ranks then finish the same step and save.
    """
    evaluation, checkpoint = Evaluation(session), session.spec.checkpoint
    drained = False
    for step in session.steps(leaving=leaving):  # the same global batch at every step, whatever the number of ranks
        update = session.update(step)  # gradients over all ranks, clipping, AdamW
        held_out = None
        if evaluation.due(session.step):
            with session.clock("evaluate"):
                held_out = evaluation()
        if session.world.first:
            with session.clock("record"):
                record(session, step, update, held_out, ledger=ledger, sinks=sinks, generation=generation)
        session.judge(update)  # a loss that is not finite: stop, skip or roll back
        if step.drain or session.step % checkpoint.every == 0:
            with session.clock("save"):
                session.save(wait=step.drain)
        if step.drain:
            drained = True
            break
    if not drained:
        session.save(wait=True)
    session.settle()  # the last save is complete, on every rank, or all of them raise
    return session.step == session.spec.trainer.steps or not drained


def record(
    session: Session,
    step: GlobalStep,
    update: Update,
    held_out: Result | None,
    *,
    ledger: Ledger | None,
    sinks: Sequence[Sink],
    generation: int,
) -> None:
    """Writes one step's lines. An error here is told to all ranks before the next step, and ends them together."""
    digest, lanes = step_digest(step.digests, session.spec.lanes.count)
    size = session.world.seat.size
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
                loss=update.loss,
            )
        values = {"digest": digest.hex(), "world_size": size, "generation": generation, **measured(session, step, update)}
        if held_out is not None:
            values |= {"eval_loss": held_out.loss, "eval_tokens": held_out.tokens}
        for sink in sinks:
            sink.write(step.step, values)
    except ZephonError as error:
        session.fault = error
    except OSError as error:
        session.fault = ZephonError(
            f"the records of step {step.step} could not be written to {session.job.run.url}: {error}",
            follows="the run could no longer prove which data it was trained on",
            remedy="make room or restore access to the run directory, then resume",
        )


def measured(session: Session, step: GlobalStep, update: Update) -> dict[str, Any]:
    """The numbers of one step. Seconds are the host's; on CUDA the device may still be at work behind them."""
    seconds, phases = session.clock.lap()
    if "forward" in phases and "gradients" in phases:
        phases["backward"] = max(0.0, phases.pop("gradients") - phases["forward"])
    speed = step.tokens / seconds
    found: dict[str, Any] = {
        "loss": update.loss,
        "grad_norm": update.norm,
        "lr": update.rate,
        "tokens": step.tokens,
        "total_tokens": session.tokens,
        "tokens_per_s": speed,
        "skipped": update.skipped,
        "shares": shares(step.by_dataset),
        "seconds": {"step": seconds, **phases},
        "memory": memory(session.world.device),
    }
    if session.peak is not None:
        found["mfu"] = speed * session.operations / (session.peak * session.world.seat.size)
    return found


def shares(tokens: dict[str, int]) -> dict[str, float]:
    """Each dataset's part of the step's tokens."""
    total = sum(tokens.values())
    return {name: count / total for name, count in tokens.items()}
