"""Between two steps: a decision on the mixture that is due, and a loader that knows it."""

from __future__ import annotations

import functools

from zephon.train.session import Session
from zephon.train.update import Update


def steer(session: Session) -> None:
    """Makes a decision that is due, and goes on from the same state with one more phase to come.

    Raises:
        ZephonError: what rank 0 could not decide or write, on every rank.
    """
    steering, begins = session.job.steering, session.job.begins
    if steering is None or begins is None or not steering.due(session.step):
        return
    decision = steering.decide(session.step, session.membership, functools.partial(begins, session.state))
    session.renew_feed()
    if session.state is not None:
        session.feed.restore(session.state)
    if session.membership.first:
        shares = ", ".join(f"{name} {share:.1%}" for name, share in decision.weights.items())
        session.job.log(f"mixture from about step {decision.effective} on: {shares}")


def note(session: Session, update: Update) -> None:
    """What the last step has measured of each dataset."""
    if session.job.steering is not None:
        loss = {name: of.mean for name, of in update.datasets.items()}
        session.job.steering.note(session.step - 1, loss, {name: of.tokens for name, of in update.datasets.items()})
