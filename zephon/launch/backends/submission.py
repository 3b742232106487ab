"""How a job is sent: by TorchX, with one of our schedulers. Only a submit imports this, because importing TorchX is slow."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from torchx.runner import Runner
from torchx.schedulers.api import Scheduler, Stream, filter_regex
from torchx.specs import AppDryRunInfo, AppState

from zephon.errors import ConfigError
from zephon.launch.appdef import app_def
from zephon.launch.job import Job
from zephon.run.state import State

APP_STATES: dict[State, AppState] = {
    "UNSUBMITTED": AppState.UNSUBMITTED,
    "QUEUED": AppState.PENDING,
    "STARTING": AppState.PENDING,
    "RUNNING": AppState.RUNNING,
    "DRAINING": AppState.RUNNING,
    "UNKNOWN": AppState.UNKNOWN,
    "ELSEWHERE": AppState.UNKNOWN,
    "DONE": AppState.SUCCEEDED,
    "STOPPED": AppState.CANCELLED,
    "FAILED": AppState.FAILED,
    "GONE": AppState.CANCELLED,
}
"""Our states in TorchX's terms."""

Options = TypeVar("Options")


class NodeLogs(Scheduler[Options]):  # type: ignore[misc]
    """TorchX's ``log_iter`` over the log of one node, which is one stream of lines; a scheduler gives ``node_log``."""

    @abc.abstractmethod
    def node_log(self, app_id: str, role: str, node: int, *, follow: bool, since: datetime | None) -> Iterable[str]:
        """Lines with their newline; ``follow`` goes on until the node's attempt has ended.

        Raises:
            ConfigError: ``since`` where lines have no time.
        """

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        """The lines of node ``k`` that ``regex`` matches.

        Raises:
            ConfigError: ``until`` or separate streams, which nobody keeps; or ``since`` where lines have no time.
        """
        if until is not None or streams not in (None, Stream.COMBINED):
            raise ConfigError(
                "until= and separate streams are not available",
                follows="the lines could not be told apart",
                remedy="leave them out: stdout and stderr come as one stream",
            )
        lines = self.node_log(app_id, role_name, k, follow=should_tail, since=since)
        return filter_regex(regex, lines) if regex else lines


class Torchx:
    """Submits to one TorchX scheduler, with the options of a spec; no entry points are read."""

    def __init__(self, name: str, factory: Callable[..., Scheduler[Any]]) -> None:
        self.name, self._factory = name, factory

    def runner(self) -> Runner:
        return Runner("zephon", {self.name: self._factory})

    def request(self, job: Job, options: Mapping[str, Any]) -> AppDryRunInfo[Any, Any]:
        with self.runner() as runner:
            return runner.dryrun(app_def(job), self.name, dict(options))

    def submit(self, job: Job, options: Mapping[str, Any], *, begin: Callable[[Any], None] | None = None) -> str:
        """Sends a job; ``begin`` gets the request just before, to record what is about to be sent."""
        with self.runner() as runner:
            info = runner.dryrun(app_def(job), self.name, dict(options))
            if begin is not None:
                begin(info.request)
            return str(runner.schedule(info))
