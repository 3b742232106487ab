"""What a backend is: it carries out the attempts of a run. Each is one object, which ``registry.backend(name)`` finds.

    Job ──request──► what a submit sends (a dry run)          AttemptState ◄──state── an attempt
    Job ──submit───► handle, kept beside the attempt          stop, rescale, resume, discard ──► an attempt

Nothing outside launch/backends asks for a backend's name: it asks the object what it can do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from zephon.errors import ZephonError
from zephon.launch.job import Job
from zephon.run.directory import RunDir
from zephon.run.events import EventReader
from zephon.run.lease import Lease
from zephon.run.state import AttemptState


class Away(ZephonError):
    """Nobody answers where the attempts run; what runs there goes on."""


class Backend(Protocol):
    """The attempts of one kind of scheduler.

    Attributes:
        name: value of ``scheduler.name``.
        here: its nodes run on this machine: they see the paths, data and packages that this process sees, and a run that is
            followed in the foreground ends with it.
        rescales_at_once: a new size is accepted in every state; otherwise only when the attempt makes steps.
    """

    name: str
    here: bool
    rescales_at_once: bool

    def request(self, job: Job) -> object:
        """Exactly what a submit would send; ``str`` shows it. Nothing is started, and no cluster is needed.

        Raises:
            ConfigError: the job or an option cannot work.
        """

    def check_alone(self, job: Job) -> None:
        """Refuses an attempt while anything of its run still lives where it would be sent.

        Raises:
            ConfigError: naming what lives.
        """

    def submit(self, job: Job, lease: Lease) -> str:
        """Sends it and returns TorchX's handle. The run's lease is the backend's from now on: kept, or released."""

    def examine(self, job: Job) -> tuple[str, ...]:
        """Asks where the job would run whether it can: rights of all verbs, quotas, admission. Starts nothing.

        Returns:
            Remarks, a sentence each.

        Raises:
            ZephonError: it cannot, or there is no answer.
        """

    def state(self, rundir: RunDir, attempt: int, events: EventReader) -> AttemptState | None:
        """How the attempt is; None where no submit has begun.

        Args:
            events: the run's; a caller that asks repeatedly passes the same reader, which reads each event once.
        """

    def stop(self, rundir: RunDir, attempt: int) -> None:
        """Asks for a drain: the step is finished and saved. Does not wait."""

    def rescale(self, rundir: RunDir, attempt: int, nodes: int) -> None:
        """Sets the number of nodes. Does not wait.

        Raises:
            ConfigError: not possible for this attempt, or not now.
        """

    def preview(self, rundir: RunDir, attempt: int, nodes: int) -> str:
        """What a rescale would do to the nodes; empty where that is not known. Refuses what ``rescale`` refuses."""

    def resume(self, rundir: RunDir, attempt: int) -> bool:
        """Lets a stopped attempt go on as the same one; False where only a new attempt can."""

    def discard(self, rundir: RunDir, attempt: int, *, keep_ended: bool = False) -> None:
        """Removes what an attempt that has ended has left where it ran; waits until it is gone.

        Args:
            keep_ended: leave what cannot start again, for its logs.
        """

    def log_lines(self, rundir: RunDir, attempt: int, node: int, *, follow: bool) -> Iterable[str]:
        """The log of one node, with newlines."""
