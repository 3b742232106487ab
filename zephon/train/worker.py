"""What one worker process does, from its environment to its exit status.

    0     the last step is done              75    drained: another process leaves or joins, or a newer generation exists
    65    configuration or contract error    143   drained: this process was asked to leave
    else  a crash

SIGTERM only sets a flag, which all ranks see in the next step; SIGUSR1 writes the stacks of all threads to stderr.
The fork server calls ``main`` in a process that has inherited all imports.
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from zephon.errors import ZephonError
from zephon.exits import Exit
from zephon.run.directory import RunDir
from zephon.run.generation import check_newest, newest_claim, read_generation
from zephon.run.specs import read_spec
from zephon.spec.experiment import RunSpec

if TYPE_CHECKING:
    from zephon.train.session import Job

Train = Callable[[RunDir, int, RunSpec, threading.Event], bool]


def main(run_url: str, attempt: int, *, job: Callable[..., Job] | None = None) -> int:
    """Trains attempt ``attempt`` of a run as the rank that the environment names; returns the exit status.

    Args:
        job: makes the session's job, with the arguments of `job_for`, as it does where none is given.
    """
    return status_of(functools.partial(_train, job=job), run_url, attempt)


def arguments_of(prog: str, description: str | None = None) -> tuple[str, int]:
    """The run's URL and the attempt from the command line, as the agent gives them to any trainer."""
    parser = argparse.ArgumentParser(prog=f"python -m {prog}", description=description)
    parser.add_argument("--run", required=True, metavar="URL", help="the run directory")
    parser.add_argument("--attempt", required=True, type=int, metavar="N", help="whose attempts/NNNN/spec.json to train")
    arguments = parser.parse_args()
    return arguments.run, arguments.attempt


def status_of(train: Train, run_url: str, attempt: int) -> int:
    """The exit status of a trainer.

    Args:
        train: takes run, attempt, spec and the flag that SIGTERM sets; returns whether the last step is done.
        run_url, attempt: of which.
    """
    leaving = threading.Event()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: leaving.set())
        faulthandler.register(signal.SIGUSR1, all_threads=True)
    try:
        run = RunDir(run_url)
        done = train(run, attempt, read_spec(run, attempt), leaving)
    except ZephonError as error:
        log(render(error))
        return error.exit_status
    if done:
        return Exit.DONE
    return Exit.LEFT if leaving.is_set() else Exit.DRAINED


def _train(
    run: RunDir, attempt: int, spec: RunSpec, leaving: threading.Event, *, job: Callable[..., Job] | None = None
) -> bool:
    import torch

    from zephon.train import distributed, reduction
    from zephon.train.feed import job_for
    from zephon.train.loop import train
    from zephon.train.records import Records
    from zephon.train.session import build

    trainer, process = spec.trainer, distributed.ProcessInfo.from_environment()
    threads = trainer.torch_threads or (1 if trainer.reduction == "canonical" else None)
    if threads is not None:
        torch.set_num_threads(threads)  # sums on CPU are split by thread: the count is part of their order
    generation = int(os.environ.get("ZEPHON_GENERATION", "0"))
    check_newest((attempt, generation), newest_claim(run))
    fence = Fence(run, attempt, generation)
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
        session = build((job or job_for)(spec, run, membership, log=log, fence=fence.check), membership)
        owned.push(lambda kind, *_: session.close(abandon=kind is not None and not issubclass(kind, ZephonError)))
        records: Records | None = None
        if membership.first:
            try:
                records = Records(run, spec, attempt, generation, fence=fence.check)
                owned.callback(records.close)
            except ZephonError as error:
                session.fault = error  # all ranks receive it before the first step
        return train(session, records=records, leaving=leaving.is_set)


class Fence:
    """Compares this worker's generation with ``generation.json``, which the coordinator writes before a new one starts."""

    def __init__(self, run: RunDir, attempt: int, generation: int) -> None:
        self._run, self._order = run, (attempt, generation)

    def check(self) -> None:
        """Raises Superseded when a newer generation exists, of this attempt or of a later one."""
        newest = read_generation(self._run)
        if newest is not None:
            check_newest(self._order, newest.order)


def log(text: str) -> None:
    """Writes a line to this rank's log."""
    rank = os.environ.get("RANK", "0")
    print(f"[rank {rank}] {text}", file=sys.stderr, flush=True)


def render(error: ZephonError) -> str:
    notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", []))
    return f"{type(error).__name__}: {error}{notes}"
