"""Loss on held-out text, the same number at every world size: every row counts once.

The session reads the text at its start and keeps it: all of it, or the first part of ``trainer.eval_tokens`` tokens, in the
same slots at every size. Where a lane has ended before the others its slots have rows of weight zero. Each part's sum of
losses goes to all ranks, which add the parts without rounding (``math.fsum``), so that their order does not matter, and divide
once by the count of all tokens. With canonical reduction the parts are its blocks, and the result has the same bits at every
power-of-two size. Between two parts all ranks agree whether one of them was asked to leave.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from zephon.errors import ConfigError, ZephonError
from zephon.train.loss import DatasetLoss, dataset_losses, sums_by_dataset
from zephon.train.reduction import block_size
from zephon.train.session import Session
from zephon.train.step import Drain, TokenRows, first_error, rank_report
from zephon.types import IGNORE_INDEX


@dataclass(frozen=True, kw_only=True)
class Result:
    """Mean cross entropy per trained token, and how many tokens that was; ``datasets`` the same of each held-out set."""

    loss: float
    tokens: int
    datasets: dict[str, DatasetLoss] = field(default_factory=dict)


class Evaluation:
    """A session's held-out text and what to do with it. Every rank must make the same calls in the same step."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._rows: list[TokenRows] | None = None
        self._tokens = 0
        self._trained: dict[str, int] = {}

    def due(self, step: int) -> bool:
        """Whether to evaluate after ``step`` steps."""
        trainer = self._session.spec.trainer
        return trainer.eval_every is not None and (step % trainer.eval_every == 0 or step == trainer.steps)

    def prepare(self, *, leaving: Callable[[], Drain] = lambda: Drain.NO) -> None:
        """Reads the held-out text, so that what is wrong with it is an error before the first step.

        Raises:
            ConfigError: it has nothing to predict.
        """
        if self._rows is None:
            with self._session.clock("evaluate"):
                self._rows = self._read(leaving)

    @torch.no_grad()
    def __call__(self, *, leaving: Callable[[], Drain] = lambda: Drain.NO, drained: bool = False) -> Result | None:
        """The loss; None on every rank where one was asked to leave, and the caller then saves and leaves.

        Args:
            leaving: whether this process was asked to leave meanwhile.
            drained: whether one was asked to leave before, as all ranks know.
        """
        session, result = self._session, None
        if not drained:
            self.prepare(leaving=leaving)
        if self._rows is not None and not drained:
            with session.clock("evaluate"):
                result = self._evaluate(self._rows, leaving)
        if result is None and session.membership.first:
            session.job.log(f"the evaluation after {session.step} steps is skipped: a process was asked to leave")
        return result

    def _evaluate(self, steps: list[TokenRows], leaving: Callable[[], Drain]) -> Result | None:
        session, trainer = self._session, self._session.spec.trainer
        size = block_size(session.spec) if trainer.reduction == "canonical" else trainer.microbatch_size
        losses: list[list[float]] = []
        for rows in steps:
            if any(session.membership.exchange(leaving())):
                return None
            parts = rows.to(session.membership.device).split(size)
            losses += [sums_by_dataset(session.losses(part)[1], part.datasets, len(self._trained)).tolist() for part in parts]
        gathered = session.membership.exchange_data_parallel(losses)
        loss, *by_dataset = (math.fsum(column) for column in zip(*itertools.chain.from_iterable(gathered), strict=True))
        return Result(loss=loss / self._tokens, tokens=self._tokens, datasets=dataset_losses(self._trained, by_dataset))

    def _read(self, leaving: Callable[[], Drain]) -> list[TokenRows] | None:
        """This rank's part of the held-out text by step, with as many rows as the others have; None where a rank leaves."""
        session, membership = self._session, self._session.membership
        assert session.job.held_out is not None
        feed, steps, ended = session.job.held_out(membership.dp_rank, membership.dp_size), list[TokenRows](), False
        self._tokens, self._trained = 0, {}
        try:
            source = feed.steps()
            while self._tokens < session.spec.trainer.eval_tokens:
                batch, error = None, None
                try:
                    batch = None if ended else next(source, None)
                except ZephonError as raised:
                    error = raised
                reports = membership.exchange_data_parallel(rank_report(batch, drain=leaving(), error=error))
                if (failure := first_error(reports)) is not None:
                    raise failure
                if any(report.drain for report in reports):
                    return None
                if all(report.step is None for report in reports):
                    break
                ended = batch is None
                rows = batch.rows if batch is not None else _weightless(steps, session.spec.pipeline.context_length)
                steps.append(rows.padded(max(report.rows for report in reports)))
                self._tokens += sum(report.tokens for report in reports)
                for name, count in itertools.chain.from_iterable(report.trained.items() for report in reports):
                    self._trained[name] = self._trained.get(name, 0) + count
        finally:
            feed.close()
        if not self._tokens:
            raise ConfigError(
                "trainer.eval_data has no token to predict",
                remedy="give held-out text with documents of two tokens or more, or leave trainer.eval_every out",
            )
        if membership.first:
            bound = session.spec.trainer.eval_tokens
            which = "the first" if self._tokens >= bound else "all"
            session.job.log(f"held-out text: {which} {self._tokens:,} tokens to predict (trainer.eval_tokens={bound})")
        return steps


def _weightless(steps: list[TokenRows], length: int) -> TokenRows:
    """One row of weight zero, like the others."""
    if steps:
        (first, *_) = steps[-1].split(1)
        return replace(first, labels=torch.full_like(first.labels, IGNORE_INDEX))
    zeros = torch.zeros((1, length), dtype=torch.int64)
    return TokenRows(input_ids=zeros, labels=torch.full_like(zeros, IGNORE_INDEX), positions=zeros)
