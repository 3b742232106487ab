"""One worker's life: memberships of ranks, one after another, with the state in memory between them.

    join -> build -> train -> leave -> park: wait for a place -> join -> ...

The worker ends when the run is done, when it is asked to leave, or when no agent can give it another place. A peer that is lost
in the middle of a step ends the membership too: what the step has not completed is dropped, and the state before it goes on.
"""

from __future__ import annotations

import functools
import gc
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from zephon.errors import Superseded, ZephonError
from zephon.handover import AgentLine, Parked
from zephon.run.directory import RunDir
from zephon.run.generation import check_newest, newest_claim
from zephon.run.ledger import steps_recorded
from zephon.spec.experiment import RunSpec
from zephon.train import checkpoint, distributed, optim, reduction
from zephon.train.feed import Material, job_for
from zephon.train.loop import train
from zephon.train.rank import Fence, log
from zephon.train.records import Records
from zephon.train.session import Job, Session, build
from zephon.train.snapshot import Snapshot
from zephon.train.steer import note
from zephon.train.step import Drain


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a membership ended for this rank.

    Args:
        snapshot: what this rank holds, where the run is not done.
        lost: the error by which it noticed that a peer was lost.
    """

    done: bool = False
    snapshot: Snapshot | None = None
    lost: str | None = None


class Life:
    """Call ``train`` once.

    Args:
        leaving: set when this process is asked to end.
        job: what to train on, in place of ``feed.job_for``.
    """

    def __init__(
        self,
        run: RunDir,
        attempt: int,
        spec: RunSpec,
        leaving: threading.Event,
        *,
        job: Callable[..., Job] | None = None,
    ) -> None:
        self._run, self._attempt, self._spec, self._leaving = run, attempt, spec, leaving
        self._agent = AgentLine.from_environment() if spec.elastic.in_place else None
        self._job = job or functools.partial(job_for, material=Material(spec))
        self._records: Records | None = None
        self._fence: Fence | None = None

    def train(self) -> bool:
        """Trains until the last step, or until this process is asked to leave; returns whether the last step is done.

        Raises:
            ZephonError: configuration, contract or data cannot work; or the state could not be saved.
            RuntimeError: a peer was lost, and no agent can give this process another place.
        """
        snapshot: Snapshot | None = None
        trainer = self._spec.trainer
        gc.freeze()  # what has been imported stays: it need not be looked through at every change of members
        threads = trainer.torch_threads or (1 if trainer.reduction == "canonical" else None)
        if threads is not None:
            torch.set_num_threads(threads)  # sums on CPU are split by thread: the count is part of their order
        try:
            while True:
                outcome = self._membership(snapshot)
                if outcome.done:
                    return True
                snapshot = outcome.snapshot
                if self._leaving.is_set() and outcome.lost is None:
                    return False
                place = self._park(snapshot, outcome.lost)
                if place is None:
                    if outcome.lost is not None and not self._leaving.is_set():
                        raise RuntimeError(outcome.lost)
                    self._save_alone(snapshot)
                    return False
                os.environ.update(place)
        finally:
            if self._records is not None:
                self._records.close()

    def _membership(self, snapshot: Snapshot | None) -> Outcome:
        """Trains in the membership that the environment names."""
        held: list[Snapshot | None] = []
        try:
            done = self._in_membership(snapshot, held)
            return Outcome(done=done, snapshot=held[0])
        except (RuntimeError, ZephonError) as error:
            if self._agent is None or not distributed.lost_peer(error):
                raise
            text = next(iter(str(error).splitlines()), type(error).__name__)
        log(f"a peer was lost: {text}")  # no frame of the error holds the membership's objects any more
        if held:
            return Outcome(snapshot=held[0], lost=text)
        return Outcome(snapshot=snapshot if snapshot is not None and snapshot.intact else None, lost=text)

    def _in_membership(self, snapshot: Snapshot | None, held: list[Snapshot | None]) -> bool:
        """Whether the run is done. ``held`` gets what this rank holds in the end, as soon as it has a session."""
        spec, run, process = self._spec, self._run, distributed.ProcessInfo.from_environment()
        trainer, generation = spec.trainer, int(os.environ.get("ZEPHON_GENERATION", "0"))
        check_newest((self._attempt, generation), newest_claim(run))
        fence = self._fence = Fence(run, self._attempt, generation)
        device = distributed.choose_device(trainer.device, local_rank=process.local_rank)
        if trainer.reduction == "canonical":
            reduction.use_deterministic_kernels(device)
        with ExitStack() as owned:
            membership = distributed.join(
                process,
                device=device,
                parallel=trainer.parallel,
                tensor=trainer.tensor_parallel,
                timeout_s=trainer.process_group_timeout_s,
            )
            owned.callback(membership.leave)
            if self._records is not None:
                self._records.bring()
            job = self._job(spec, run, membership, log=log, fence=fence.check)
            session = build(job, membership, snapshot, recorded=self._recorded)
            owned.push(lambda kind, *_: session.close(abandon=kind is not None and not issubclass(kind, ZephonError)))
            owned.callback(lambda: held.append(session.hold()))
            self._record(session, generation)
            return train(session, records=self._records, leaving=self._asked)

    def _record(self, session: Session, generation: int) -> None:
        """Opens the run's files on the first rank, or goes on with them; another rank closes them."""
        if not session.membership.first:
            if self._records is not None:
                self._records.close()
                self._records = None
            return
        try:
            if self._records is None:
                self._records = Records(self._run, self._spec, self._attempt, generation, fence=self._check_fence)
            else:
                self._records.go_on(generation)
            if self._records.write_missed(session) and session.last is not None:
                note(session, session.last[1])
        except ZephonError as error:
            session.fault = error  # all ranks receive it before the first step

    def _check_fence(self) -> None:
        if self._fence is not None:
            self._fence.check()

    def _recorded(self) -> int:
        return self._records.steps if self._records is not None else steps_recorded(self._run)

    def _asked(self) -> Drain:
        if self._leaving.is_set():
            return Drain.LEAVE
        return Drain.STAY if self._agent is not None and self._agent.asked() else Drain.NO

    def _park(self, snapshot: Snapshot | None, lost: str | None) -> dict[str, str] | None:
        """Waits outside any membership for the next place; None where there will be none."""
        if self._agent is None:
            return None
        step = snapshot.position.step if snapshot is not None else -1
        self._agent.park(Parked(step, lost))
        gc.collect()  # wrappers of the old membership keep hooks on the parameters as long as they live
        place = self._agent.wait_place(self._leaving)
        return dict(place.env) if place is not None else None

    def _save_alone(self, snapshot: Snapshot | None) -> None:
        """What is in memory alone is saved by the rank that wrote the run's files, when it is asked to end while it waits."""
        if snapshot is None or snapshot.saved or not snapshot.first or snapshot.module is None or snapshot.optimizer is None:
            return
        position, fence = snapshot.position, self._check_fence
        if position.state is None:
            return
        device = next(snapshot.module.parameters()).device
        with ExitStack() as owned:
            alone = distributed.join(distributed.ProcessInfo(), device=device)
            owned.callback(alone.leave)
            saver = checkpoint.Saver(self._run, alone, self._spec.checkpoint, fence=fence)
            owned.callback(saver.close)
            tensors = optim.tensors(snapshot.module, snapshot.optimizer)
            try:
                saver.save(tensors, position.state["lanes"], position.meta(self._spec), wait=True)
            except Superseded:
                return  # the others have gone on without this process
            log(f"saved after {position.step} steps: asked to leave while waiting for a place")
