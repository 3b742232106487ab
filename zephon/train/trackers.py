"""Weights & Biases and MLflow, where they are installed and a run names a project. Each keeps one run of its own a run.

An attempt that goes on behind a crash finds the tracker's run by the run's name, and writes behind what is there. Where and
how they store is their own configuration: environment variables such as ``WANDB_MODE`` and ``MLFLOW_TRACKING_URI``.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from zephon.errors import ConfigError
from zephon.spec.experiment import RunSpec

RUN_TAG = "zephon.run"


class Scalars:
    """All numbers of a step to a tracker through one call ``put(numbers, step)``; nested values by dotted name.

    Args:
        service: the tracker's name, where it is a service: one that fails is told of once, and left alone from then on,
            since metrics.jsonl has everything and training must not wait for others.
    """

    def __init__(
        self, put: Callable[[dict[str, float], int], Any], end: Callable[[], Any], *, service: str | None = None
    ) -> None:
        self._put, self._end, self._service, self._failed = put, end, service, False

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        self._careful(lambda: self._put(dict(_numbers(values)), step))

    def close(self) -> None:
        self._careful(self._end)

    def _careful(self, call: Callable[[], Any]) -> None:
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
    """Raises ConfigError where the package is not installed, or cannot begin a run as it is configured."""
    module = _tracker("wandb")
    with _beginning("wandb", project):
        tracked = module.init(project=project, name=spec.name, id=spec.name, resume="allow", config=spec.to_dict())
    return Scalars(lambda numbers, step: tracked.log(numbers, step=step), tracked.finish, service="wandb")


def mlflow(experiment: str, spec: RunSpec) -> Scalars:
    """Raises ConfigError where the package is not installed, or cannot begin a run as it is configured."""
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


def _tracker(name: str) -> Any:
    if importlib.util.find_spec(name) is None:
        raise ConfigError(
            f"trainer.{name} is set and the package {name} is not installed",
            follows="the metrics would not reach it",
            remedy=f"pip install {name}, or leave trainer.{name} out",
        )
    return importlib.import_module(name)


def _numbers(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield prefix + name, float(value)
