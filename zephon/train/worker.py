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
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from zephon.errors import ZephonError
from zephon.exits import Exit
from zephon.run.directory import RunDir
from zephon.run.specs import read_spec
from zephon.spec.experiment import RunSpec
from zephon.train.rank import log

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
    from zephon.train.life import Life

    return Life(run, attempt, spec, leaving, job=job).train()


def render(error: ZephonError) -> str:
    notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", []))
    return f"{type(error).__name__}: {error}{notes}"
