"""How a job is sent: by TorchX, with one of our schedulers. Only a submit imports this, because importing TorchX is slow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torchx.runner import Runner
from torchx.schedulers.api import Scheduler
from torchx.specs import AppDryRunInfo, AppState

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
