"""Loss on held-out text, the same number at every world size.

The session reads the text once and keeps it: about ``trainer.eval_tokens`` tokens, in the same slots at every size. Each
part's sum of losses goes to all ranks, which add the parts without rounding (``math.fsum``), so that their order does not
matter, and divide once by the count of all tokens. With canonical reduction the parts are its blocks, and the result has the
same bits at every power-of-two size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from zephon.errors import ConfigError, ZephonError
from zephon.train.reduction import block_size
from zephon.train.session import Session
from zephon.train.step import GlobalStep, agree, one_batch, rank_report


@dataclass(frozen=True, kw_only=True)
class Result:
    """Mean cross entropy per trained token, and how many tokens that was."""

    loss: float
    tokens: int


class Evaluation:
    """A session's held-out text and what to do with it. Every rank must call it in the same step."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._steps: list[GlobalStep] | None = None

    def due(self, step: int) -> bool:
        """Whether to evaluate after ``step`` steps."""
        trainer = self._session.spec.trainer
        return trainer.eval_every is not None and (step % trainer.eval_every == 0 or step == trainer.steps)

    @torch.no_grad()
    def __call__(self) -> Result:
        with self._session.clock("evaluate"):
            return self._evaluate()

    def _evaluate(self) -> Result:
        session, trainer = self._session, self._session.spec.trainer
        if self._steps is None:
            self._steps = self._read()
        size = block_size(session.spec) if trainer.reduction == "canonical" else trainer.microbatch_size
        parts = [part for step in self._steps for part in step.rows.to(session.membership.device).split(size)]
        gathered = session.membership.exchange_data_parallel([float(session.sums(part)[1]) for part in parts])
        tokens = sum(step.tokens for step in self._steps)
        return Result(loss=math.fsum(loss for rank in gathered for loss in rank) / tokens, tokens=tokens)

    def _read(self) -> list[GlobalStep]:
        """This rank's part of the held-out text, as global batches that all ranks agree on."""
        membership, steps, tokens = self._session.membership, [], 0
        assert self._session.job.held_out is not None
        feed = self._session.job.held_out(membership.dp_rank, membership.dp_size)
        try:
            source = feed.steps()
            while tokens < self._session.spec.trainer.eval_tokens:
                batch, error = None, None
                try:
                    batch = next(source, None)
                except ZephonError as raised:
                    error = raised
                report = rank_report(batch, drain=False, error=error)
                step = agree(batch, membership.exchange_data_parallel(report))
                if step is None:
                    break
                steps.append(step)
                tokens += step.tokens
        finally:
            feed.close()
        if not tokens:
            raise ConfigError(
                f"trainer.eval_data is not enough for one global batch: {one_batch(self._session.spec)}",
                remedy="give more held-out text, or leave trainer.eval_every out",
            )
        return steps
