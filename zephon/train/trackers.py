"""Weights & Biases and MLflow, where they are installed and a run names a project. Every run has one run in the tracker.

An attempt that goes on after a crash finds the tracker's run by the run's name and appends to it. Each tracker's own
environment variables, such as ``WANDB_MODE`` and ``MLFLOW_TRACKING_URI``, say where and how it stores.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType

from zephon.errors import ConfigError
from zephon.spec.experiment import RunSpec

RUN_TAG = "zephon.run"


class Scalars:
    """Gives all numbers of a step to a tracker by one call ``put(numbers, step)``; nested values have dotted names.

    Args:
        service: the tracker's name, where it is a service. After its first failure, which one line reports, it gets no more
            numbers: metrics.jsonl has everything, and training must not wait for others.
    """

    def __init__(
        self, put: Callable[[dict[str, float], int], object], end: Callable[[], object], *, service: str | None = None
    ) -> None:
        self._put, self._end, self._service, self._failed = put, end, service, False

    def write(self, step: int, values: Mapping[str, object]) -> None:
        # Trackers have their own time, and refuse names such as that of a reason.
        numbers = dict(_numbers({name: value for name, value in values.items() if name not in ("time", "dropped_so_far")}))
        self._guarded(lambda: self._put(numbers, step))

    def close(self) -> None:
        self._guarded(self._end)

    def _guarded(self, call: Callable[[], object]) -> None:
        if self._failed:
            return
        try:
            call()
        except Exception as error:
            if self._service is None:
                raise
            self._failed = True
            print(f"{self._service} gets no more metrics: {error}; metrics.jsonl goes on", file=sys.stderr, flush=True)


def wandb(project: str, spec: RunSpec) -> Scalars:
    """Raises ConfigError where the package is not installed, or its configuration does not let it begin a run."""
    module = _tracker("wandb")
    with _beginning("wandb", project):
        tracked = module.init(project=project, name=spec.name, id=spec.name, resume="allow", config=spec.to_dict())
    return Scalars(lambda numbers, step: tracked.log(numbers, step=step), tracked.finish, service="wandb")


def mlflow(experiment: str, spec: RunSpec) -> Scalars:
    """Raises ConfigError where the package is not installed, or its configuration does not let it begin a run."""
    module = _tracker("mlflow")
    with _beginning("mlflow", experiment):
        chosen = module.set_experiment(experiment)
        wanted = f"tags.`{RUN_TAG}` = '{spec.name}'"
        before = module.MlflowClient().search_runs([chosen.experiment_id], filter_string=wanted, max_results=1)
        if before:
            module.start_run(run_id=before[0].info.run_id)
        else:
            module.start_run(run_name=spec.name, tags={RUN_TAG: spec.name})
    return Scalars(lambda numbers, step: module.log_metrics(numbers, step=step), module.end_run, service="mlflow")


@contextmanager
def _beginning(tracker: str, project: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise ConfigError(
            f"trainer.{tracker}={project!r}: it cannot begin a run: {error}",
            follows="the metrics would not reach it",
            remedy=f"configure {tracker} on every node (address, login, or its offline mode), or leave trainer.{tracker} out",
        ) from error


def _tracker(name: str) -> ModuleType:
    if importlib.util.find_spec(name) is None:
        raise ConfigError(
            f"trainer.{name} is set and the package {name} is not installed",
            follows="the metrics would not reach it",
            remedy=f"pip install {name}, or leave trainer.{name} out",
        )
    return importlib.import_module(name)


def _numbers(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield prefix + name, float(value)
