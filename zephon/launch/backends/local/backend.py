"""The backend ``local``: this machine, one detached supervisor per attempt."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from zephon.errors import ConfigError, nearest
from zephon.launch.backends.local.commands import Rescale, Stop
from zephon.launch.backends.local.supervision import read_state, send_command
from zephon.launch.job import Job
from zephon.run.directory import RunDir
from zephon.run.events import EventReader
from zephon.run.lease import Lease
from zephon.run.state import AttemptState
from zephon.spec.experiment import RunSpec

if TYPE_CHECKING:
    from zephon.launch.backends.submission import Torchx

_OF_THE_JOB = ("cpu", "gpu", "memory_mb", "image")  # read when the AppDef is made
_OPTIONS = ("gpus", "cwd")


class LocalBackend:
    """See ``Backend``. A supervisor holds the run's lease while it lives, and takes a new size once it makes steps."""

    name = "local"
    here = True
    rescales_at_once = False

    @functools.cached_property
    def _torchx(self) -> Torchx:
        from zephon.launch.backends.local.scheduler import create_scheduler
        from zephon.launch.backends.submission import Torchx

        return Torchx(self.name, create_scheduler)

    def request(self, job: Job) -> object:
        return self._torchx.request(job, options_of(job.spec)).request

    def check_alone(self, job: Job) -> None:
        """Nothing: a supervisor on this machine holds the run's lease."""

    def submit(self, job: Job, lease: Lease) -> str:
        return self._torchx.submit(job, {**options_of(job.spec), "lease": lease.token})

    def examine(self, job: Job) -> tuple[str, ...]:
        return ()

    def state(self, rundir: RunDir, attempt: int, events: EventReader) -> AttemptState | None:
        return read_state(rundir, attempt)

    def stop(self, rundir: RunDir, attempt: int) -> None:
        send_command(rundir, attempt, Stop())

    def rescale(self, rundir: RunDir, attempt: int, nodes: int) -> None:
        send_command(rundir, attempt, Rescale(nodes))

    def preview(self, rundir: RunDir, attempt: int, nodes: int) -> str:
        return ""

    def resume(self, rundir: RunDir, attempt: int) -> bool:
        return False

    def discard(self, rundir: RunDir, attempt: int, *, keep_ended: bool = False) -> None:
        """Nothing: an attempt that has stopped has left only files."""

    def log_lines(self, rundir: RunDir, attempt: int, node: int, *, follow: bool) -> Iterable[str]:
        from zephon.launch.backends.local.scheduler import node_lines

        return node_lines(rundir, attempt, node, follow=follow)


def options_of(spec: RunSpec) -> Mapping[str, Any]:
    """The scheduler's own options of a spec.

    Raises:
        ConfigError: an option that this scheduler does not have.
    """
    given = {name: value for name, value in spec.scheduler.options.items() if name not in _OF_THE_JOB}
    for name in given:
        if name not in _OPTIONS:
            raise ConfigError(
                f"scheduler.options.{name} is not an option of scheduler=local",
                follows="the setting would have no effect",
                remedy=nearest(name, _OPTIONS),
            )
    return given
