"""Everything that depends on the membership: one function builds it, ``close`` ends it, and the process lives on.

    Job (spec, run directory, loader factory)             lives as long as the process
      └─ build(job, membership, snapshot) -> Session      mesh, wrapped model, optimizer, loader assignment, saver
           └─ session.hold() -> Snapshot                  this rank's part of the state, in memory, for another membership
           └─ session.close()                             ends threads; the process may then join another membership

snapshot.py says where a new membership finds its state.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from zephon.cursor import SavedState
from zephon.errors import StateError, TrainingDiverged, ZephonError
from zephon.run.checkpoints import name_of
from zephon.run.directory import RunDir
from zephon.run.ledger import has_ledger
from zephon.seeds import derive
from zephon.spec.experiment import RunSpec
from zephon.train import checkpoint, optim, reduction, usage
from zephon.train.distributed import Membership, check_replicas
from zephon.train.hf import start_from
from zephon.train.loss import dataset_losses, sums_by_dataset
from zephon.train.metrics import Clock
from zephon.train.model import initialise, parameter_count
from zephon.train.parallel import built
from zephon.train.pieces import local_rows, part_of
from zephon.train.schedule import learning_rate
from zephon.train.snapshot import Position, Snapshot, take_over
from zephon.train.steering import Steering
from zephon.train.step import Drain, Feed, GlobalStep, StepBatch, TokenRows, agree, nothing_to_train_on, rank_report
from zephon.train.update import Update
from zephon.types import DropSummary, sum_by_reason

MAX_ROLLBACKS = 3


@dataclass(frozen=True, kw_only=True)
class Job:
    """What stays the same in every membership of this process.

    Args:
        feed: makes the loader's part for (dp_rank, dp_size).
        held_out: makes the same for the evaluation's text.
        vocab_size: rows of the embedding.
        log: writes a line to this rank's log.
        fence: raises where a newer generation has taken the run over; the trainer calls it before it writes.
        steering: who decides on the mixture, where somebody does.
        begins: from a loader state, and how many steps to wait, to when a new mixture can begin.
    """

    spec: RunSpec
    run: RunDir
    feed: Callable[[int, int], Feed]
    vocab_size: int
    held_out: Callable[[int, int], Feed] | None = None
    log: Callable[[str], None] = print
    fence: Callable[[], None] = lambda: None
    steering: Steering | None = None
    begins: Callable[[SavedState | None, int], tuple[int, int]] | None = None


class Session:
    """The training of one membership; ``build`` makes it."""

    def __init__(
        self,
        job: Job,
        membership: Membership,
        module: nn.Module,
        model: nn.Module,
        optimizer: torch.optim.AdamW | None = None,
    ) -> None:
        self.job, self.spec, self.membership, self.module, self.model = job, job.spec, membership, module, model
        self.optimizer = optimizer or optim.adamw(module, job.spec.optimizer)
        self.feed = job.feed(membership.dp_rank, membership.dp_size)
        self.saver = checkpoint.Saver(job.run, membership, job.spec.checkpoint, fence=job.fence)
        self.clock = Clock()
        self.step, self.tokens = 0, 0
        self.state: SavedState | None = None
        self.skipped: tuple[int, ...] = ()
        self.fault: ZephonError | None = None
        self.ended = False  # whether the data ended before the last step
        self.dropped_at_end: tuple[DropSummary, ...] = ()
        self.average: float | None = None  # of the loss; a spike is a multiple of it
        self.last: tuple[GlobalStep, Update] | None = None
        self._source: Iterator[StepBatch] | None = None
        self._rollbacks = 0
        self._reading = False  # whether a checkpoint is just replacing the state
        self.peak = usage.peak(membership.device)
        self.operations = usage.operations_per_token(
            parameters=parameter_count(module), spec=job.spec.model, length=job.spec.pipeline.context_length
        )

    @property
    def whole(self) -> bool:
        """Whether every rank holds the whole state, so that it is safe while one of them lives."""
        return self.spec.trainer.parallel == "ddp" and self.spec.trainer.tensor_parallel == 1

    def position(self) -> Position:
        return Position(
            step=self.step,
            tokens=self.tokens,
            state=self.state,
            skipped=self.skipped,
            average=self.average,
            last=self.last,
        )

    def go_to(self, position: Position) -> None:
        """Counts on from another position; the loader follows."""
        self.step, self.tokens, self.state = position.step, position.tokens, position.state
        self.skipped, self.average, self.last = position.skipped, position.average, position.last
        if position.state is not None:
            self.feed.restore(position.state)

    def steps(self, *, leaving: Callable[[], Drain]) -> Iterator[GlobalStep]:
        """The remaining steps, each as all ranks agreed on it; ends with the run's last step or with the data.

        Raises:
            ZephonError: what went wrong on any rank, on every rank in the same step.
        """
        while self.step < self.spec.trainer.steps:
            with self.clock("data"):
                batch, error = None, self.fault or self.saver.failed()
                try:
                    self._source = self._source or self.feed.steps()
                    batch = next(self._source, None)
                except ZephonError as raised:
                    error = error or raised
            with self.clock("agree"):
                report = rank_report(batch, drain=leaving(), error=error)
                step = agree(batch, self.membership.exchange_data_parallel(report))
            if step is None:
                if self.step == 0:
                    raise nothing_to_train_on(self.spec)
                self.ended, self.dropped_at_end = True, self._dropped_at_end()
                return
            if step.step != self.step:
                raise StateError(
                    f"the loader is at step {step.step} and the weights are at step {self.step}",
                    follows="the model would train on other data than the run records",
                    remedy="resume from a checkpoint; loader and weights are always saved together",
                )
            yield step

    def update(self, step: GlobalStep) -> Update:
        """One optimizer step: gradients of the global batch, clipping, AdamW at the step's rate."""
        spec = self.spec
        full = spec.global_batch_size * spec.pipeline.context_length
        rate = learning_rate(spec.optimizer, step=step.step, steps=spec.trainer.steps, tokens=self.tokens, tokens_per_step=full)
        torch.manual_seed(derive(spec.trainer.seed, "step", step.step) % 2**63)
        if step.tokens == 0 or step.step in self.skipped:
            why = "no token of the global batch is trained" if step.tokens == 0 else "skipped after a rollback"
            return self._done(step, Update(loss=0.0, norm=0.0, rate=rate, skipped=why))
        with self.clock("gradients"):
            sums = self._gradients(step)
        with self.clock("optimizer"):
            norm = optim.gradient_norm(self.module)
            loss, *losses = sums.tolist()
            datasets = dataset_losses(step.trained, losses)
            update = Update(loss=loss / step.tokens, norm=float(norm), rate=rate, datasets=datasets)
            if (problem := self._problem(update)) is not None:
                self.optimizer.zero_grad(set_to_none=True)
                return self._done(step, replace(update, skipped=problem, bad=True))
            if spec.optimizer.clip is not None:
                optim.clip(self.module, norm, spec.optimizer.clip)
            optim.set_rate(self.optimizer, rate)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return self._done(step, update)

    def save(self, *, wait: bool = False) -> None:
        """Saves the state after the last step, in the background unless ``wait``."""
        if self.state is None or self.saver.last == self.step:
            return
        meta = self.position().meta(self.spec)
        self.saver.save(optim.tensors(self.module, self.optimizer), self.state["lanes"], meta, wait=wait)

    def settle(self) -> None:
        """Waits for the last save; raises on every rank the first error that any rank still holds."""
        fault = self.fault
        try:
            self.saver.wait()
        except ZephonError as raised:
            fault = fault or raised
        for rank, error in enumerate(self.membership.exchange(fault)):
            if error is not None:
                error.add_note(f"raised on rank {rank}")
                raise error

    def hold(self) -> Snapshot | None:
        """This rank's part of the state after the last whole step, not copied; None where it cannot go to other ranks.

        Safe after the loss of a peer in the middle of a step: weights change only after the last collective of a step, and the
        step counts when they have changed.
        """
        for part in self.module.modules():
            if isinstance(part, FSDPModule):
                part.reshard()
        live = optim.tensors(self.module, self.optimizer)
        part_held = part_of(self.membership, live)
        if part_held is None or self._reading:
            return None
        return Snapshot(
            position=self.position(),
            tensors={name: local_rows(tensor) for name, tensor in live.items()},
            part=part_held,
            saved=self.saver.last == self.step,
            first=self.membership.first,
            module=self.module if self.whole else None,
            optimizer=self.optimizer if self.whole else None,
        )

    def judge(self, update: Update) -> None:
        """Follows ``trainer.nonfinite`` after a bad step: go on without it, roll back, or stop.

        Raises:
            TrainingDiverged: the policy is ``stop``, or rolling back did not help three times.
        """
        policy, bad = self.spec.trainer.nonfinite, self.step - 1
        if not update.bad or policy == "skip":
            return
        if policy == "stop" or self._rollbacks == MAX_ROLLBACKS:
            raise TrainingDiverged(
                f"step {bad}: {update.skipped}" + (f", after {self._rollbacks} rollbacks" if self._rollbacks else ""),
                follows="every later step would start from broken weights",
                remedy="look at the data of this step with `zephon verify` and at the learning rate; "
                "trainer.nonfinite=skip skips such steps, rollback goes back to the last checkpoint",
            )
        self._rollbacks += 1
        self.saver.wait()
        self.renew_feed()
        skipped, self._reading = self.skipped, True
        from_disk_or_seed(self)
        self.skipped = tuple(sorted({*self.skipped, *skipped}))
        self._reading = False
        if self.membership.first:
            self.job.log(f"rolled back to step {self.step}; step {bad} will be skipped")

    def renew_feed(self) -> None:
        """A loader from the start of the stream, which knows what has been decided since the last one was made."""
        self.feed.close()
        self._source, self.feed = None, self.job.feed(self.membership.dp_rank, self.membership.dp_size)

    def close(self, *, abandon: bool = False) -> None:
        """Ends what the session owns; ``abandon`` after the loss of a peer. The caller ends the membership."""
        self.feed.close()
        self.saver.close(abandon=abandon)

    def _dropped_at_end(self) -> tuple[DropSummary, ...]:
        """What all ranks drop after the last step, in order of lanes, so that it is the same at every size."""
        gathered = self.membership.exchange_data_parallel(self.feed.dropped_at_end(self.state))
        by_lane = sorted(itertools.chain.from_iterable(gathered), key=operator.itemgetter(0))
        return sum_by_reason(summary for _, summary in by_lane)

    def _gradients(self, step: GlobalStep) -> Tensor:
        """Sums of losses over the global batch, float64 [1 + datasets]: of all tokens, then of each dataset's."""

        def sums(part: TokenRows) -> tuple[Tensor, Tensor]:
            minimised, entropies = self.losses(part)
            return minimised, sums_by_dataset(entropies, part.datasets, len(step.trained))

        rows = step.rows.to(self.membership.device)
        return reduction.gradients(self.spec, self.model, sums, rows, tokens=step.tokens, membership=self.membership)

    def losses(self, rows: TokenRows) -> tuple[Tensor, Tensor]:
        """Forward of some rows: (what is minimised, summed over trained tokens; cross entropy [n, T], 0 elsewhere)."""
        low = self.spec.trainer.precision == "bfloat16"
        with self.clock("forward"), torch.autocast(self.membership.device.type, torch.bfloat16, enabled=low):
            minimised, entropies = self.model(rows.input_ids, rows.positions, rows.labels, self.spec.optimizer.z_loss)
        return minimised, entropies

    def _problem(self, update: Update) -> str | None:
        """Why an update must not reach the weights; the same on every rank, since loss and norm are."""
        if not (math.isfinite(update.loss) and math.isfinite(update.norm)):
            return f"loss {update.loss} and gradient norm {update.norm} are not both finite"
        limit = self.spec.trainer.spike
        if limit is not None and self.average is not None and update.loss > limit * self.average:
            return f"loss {update.loss:.4g} is more than trainer.spike={limit} times its average of {self.average:.4g}"
        self.average = update.loss if self.average is None else 0.95 * self.average + 0.05 * update.loss
        return None

    def _done(self, step: GlobalStep, update: Update) -> Update:
        """Counts the step, and not before: where a peer dies in the middle of one, ``hold`` gives the state before it."""
        self.step, self.tokens, self.state = step.step + 1, self.tokens + step.tokens, step.state
        if update.skipped is not None:
            self.skipped = tuple(sorted({*self.skipped, step.step}))
            if self.membership.first:
                self.job.log(f"step {step.step}: {update.skipped}; the weights do not change")
        self.last = (step.without_rows(), update)
        return update


def build(
    job: Job, membership: Membership, snapshot: Snapshot | None = None, *, recorded: Callable[[], int] | None = None
) -> Session:
    """Builds a membership's session and gives it the newest state there is.

    Args:
        snapshot: what this process holds of an earlier membership.
        recorded: how many steps the ledger has; the first rank asks it.

    Raises:
        ConfigError: the experiment does not fit this number of ranks.
        StateError: the checkpoint is damaged, or of another experiment.
    """
    if job.spec.trainer.reduction == "canonical":
        reduction.check_canonical(job.spec, dp_size=membership.dp_size)
        reduction.check_consistent(membership)
    module, model = built(job.spec, job.vocab_size, membership, kept=snapshot.module if snapshot else None)
    session = Session(job, membership, module, model, snapshot.optimizer if snapshot else None)
    known = recorded() if recorded is not None and membership.first else None
    position = take_over(membership, snapshot, optim.tensors(module, session.optimizer), recorded=known)
    if position is not None:
        session.go_to(position)
    else:
        if snapshot is not None:
            snapshot.intact = False
        from_disk_or_seed(session)
    check_replicas(membership, job.spec.trainer, list(module.parameters()), step=session.step)
    return session


def from_disk_or_seed(session: Session) -> None:
    """Gives a session the newest checkpoint's state, or that of step 0."""
    job, membership = session.job, session.membership
    log = job.log if membership.first else lambda _: None
    step = checkpoint.choose(job.run, membership, policy=job.spec.checkpoint.resume, log=log)
    if step is None:
        if membership.first and has_ledger(job.run):
            log("no checkpoint was completed yet: the steps in the ledger are trained again, from step 0")
        if job.spec.model.init_from is not None:
            start_from(session.module, job.spec.model.init_from, job.spec.model)
        else:
            initialise(session.module, seed=job.spec.trainer.seed, layers=job.spec.model.layers)
        optim.reset(session.optimizer)
        session.go_to(Position(step=0, tokens=0, state=None))
        return
    meta, loader = checkpoint.load(job.run, step, optim.tensors(session.module, session.optimizer), membership)
    checkpoint.check_pinned(meta, job.spec)
    session.go_to(Position(step=meta.step, tokens=meta.tokens, state=loader, skipped=tuple(meta.skipped), average=meta.average))
    session.saver.last = meta.step
    log(f"resumed from {name_of(step)}")
