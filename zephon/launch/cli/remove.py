"""``rm RUN``: removes a run that has ended, after a question."""

from __future__ import annotations

import os
import shutil

from rich.console import Console

from zephon.errors import ConfigError
from zephon.exits import Exit
from zephon.launch.backends.local.index import prune
from zephon.launch.backends.registry import backend_of
from zephon.launch.cli.arguments import Arguments
from zephon.launch.cli.asking import confirmed
from zephon.launch.cli.views import run_of
from zephon.launch.status import RunStatus, records_dir, status_of
from zephon.run.attempt import attempt_directory
from zephon.run.checkpoints import complete_steps
from zephon.run.directory import RunDir
from zephon.run.handle import read_handle
from zephon.run.lease import Lease


def remove(arguments: Arguments, console: Console) -> int:
    """Removes the run directory, and what its last attempt has left where it ran; 130 where the answer is no."""
    if not arguments.names:
        raise ConfigError("zephon rm needs the name of a run", remedy="name it: zephon rm RUN; `zephon list` shows all")
    rundir = run_of(arguments)
    status = status_of(rundir)
    _check_ended(status)
    if not arguments.yes:
        remedy = f"to remove it without a question: zephon rm {arguments.names[0]} --yes"
        if not confirmed(_question(rundir, status), remedy=remedy):
            console.print("nothing was removed", highlight=False)
            return Exit.INTERRUPTED
    Lease(rundir, holder=f"zephon rm {status.name}").take()  # nobody starts it meanwhile; the file goes with the rest
    if read_handle(rundir, status.attempt) is not None:
        backend_of(rundir, status.attempt).discard(rundir, status.attempt)
    if not rundir.local:
        shutil.rmtree(attempt_directory(rundir, status.attempt).parent, ignore_errors=True)
    record_only = os.path.dirname(rundir.root) == str(records_dir())
    rundir.fs.rm(rundir.root, recursive=True)
    prune()
    rest = "; only the nodes see its run directory, which stays" if record_only else ""
    console.print(f"removed {status.name} ({rundir.url}){rest}", highlight=False)
    return Exit.DONE


def _check_ended(status: RunStatus) -> None:
    if status.live:
        raise ConfigError(
            f"{status.name} is {status.state} (attempt {status.attempt}, step {status.step} of {status.steps})",
            follows="a run that is under way would lose its directory",
            remedy=f"stop it first: zephon stop {status.name}",
        )


def _question(rundir: RunDir, status: RunStatus) -> str:
    kept = len(complete_steps(rundir))
    how = f"{status.state} at step {status.step} of {status.steps}, {kept} checkpoint{'' if kept == 1 else 's'}"
    return f"Remove {status.name} for good ({rundir.url}: {how})?"
