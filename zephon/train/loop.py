"""The training loop. Copy this module to train something else: only the session knows the model."""

from __future__ import annotations

from collections.abc import Callable

from zephon.train.evaluation import Evaluation
from zephon.train.records import Records
from zephon.train.session import Session
from zephon.train.steer import note, steer
from zephon.train.step import Drain


def train(session: Session, *, records: Records | None, leaving: Callable[[], Drain]) -> bool:
    """Trains the remaining steps; True when the run is done, False when a rank was asked to end its part.

    Args:
        records: where rank 0 writes; None on the others.
        leaving: whether this process was asked to; all ranks then finish the same step. They save, unless all of them stay and
            each holds the whole state.
    """
    evaluation, every, drained = Evaluation(session), session.spec.checkpoint.every, Drain.NO
    if session.spec.trainer.eval_every is not None:
        evaluation.prepare(leaving=leaving)
    steer(session)  # a decision on the mixture that is due and not recorded
    for step in session.steps(leaving=leaving):  # the same global batch at every step, whatever the number of ranks
        update = session.update(step)  # gradients over all ranks, clipping, AdamW
        note(session, update)
        drained, held_out = step.drain, None
        if evaluation.due(session.step):
            held_out = evaluation(leaving=leaving, drained=bool(drained))
            if held_out is None and not drained:  # a rank was asked to leave since, and the others do not know for how long
                drained = Drain.LEAVE
        if records is not None:
            records.write(session, step, update, held_out)  # ledger, metrics, progress
        session.judge(update)  # a loss that is not finite: stop, skip or roll back
        if drained is Drain.STAY and session.whole:
            _record(session, records)
        elif drained or session.step % every == 0:
            _save(session, records, wait=bool(drained))
        if drained:
            break
        steer(session)
    if session.ended and records is not None:
        records.end(session)  # the data ended before the last step
    if not drained:
        _save(session, records, wait=True)
    session.settle()  # the last save is complete, on every rank, or all of them raise
    return session.step == session.spec.trainer.steps or not drained


def _save(session: Session, records: Records | None, *, wait: bool) -> None:
    _record(session, records)
    with session.clock("save"):
        session.save(wait=wait)


def _record(session: Session, records: Records | None) -> None:
    with session.clock("save"):
        if records is not None:
            records.push(session)
