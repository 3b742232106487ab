"""What a run tells: metrics.jsonl always, other sinks when asked, progress.json for whoever watches.

A line carries the attempt and generation that wrote it. After a crash the steps since the checkpoint are trained again;
``series`` keeps the later line of each step, so that a curve shows every step once.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from zephon.rundir import RunDir
from zephon.spec import RunSpec

PROGRESS_INTERVAL_S = 0.1


class Sink(Protocol):
    """Receives the metrics of each step."""

    def write(self, step: int, values: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class JsonLines:
    """One line per step in a file of the run directory, appended; NaN and infinities are written as words."""

    def __init__(self, run: RunDir, name: str = "metrics.jsonl", *, attempt: int = 1) -> None:
        self._attempt = attempt
        run.fs.makedirs(run.root, exist_ok=True)
        self._file = run.fs.open(run.path(name), "ab")

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        line = json.dumps({"step": step, "attempt": self._attempt, **_spelled(values)}, ensure_ascii=False, allow_nan=False)
        self._file.write(line.encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class Progress:
    """``attempts/NNNN/progress.json``, replaced at most ten times a second and once more at the end."""

    def __init__(self, run: RunDir, attempt: int, steps: int) -> None:
        self._run, self._place, self._steps = run, ("attempts", RunDir.attempt_name(attempt), "progress.json"), steps
        self._written, self._latest = 0.0, {}  # type: tuple[float, dict[str, Any]]

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        names = ("loss", "tokens_per_s", "digest", "world_size", "generation")
        self._latest = _spelled(
            {"step": step + 1, "steps": self._steps, **{n: values.get(n) for n in names}, "time": time.time()}
        )
        if time.monotonic() - self._written >= PROGRESS_INTERVAL_S:
            self._flush()

    def close(self) -> None:
        if self._latest:
            self._flush()

    def _flush(self) -> None:
        self._run.write_json(*self._place, data=self._latest)
        self._written = time.monotonic()


class Clock:
    """Seconds by phase within one step: ``with clock("data"): ...``."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began = time.perf_counter()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - began

    def lap(self) -> tuple[float, dict[str, float]]:
        """(seconds since the last lap, seconds by phase), and starts over."""
        now, phases = time.perf_counter(), self.seconds
        total, self._began, self.seconds = now - self._began, now, {}
        return total, phases


def series(run: RunDir, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """One line per step, ascending: where a step was trained twice, the later line."""
    found: dict[int, dict[str, Any]] = {}
    if not run.exists(name):
        return []
    for line in run.fs.cat_file(run.path(name)).splitlines():
        try:
            one = json.loads(line)
        except json.JSONDecodeError:
            continue  # a line cut short by a crash; its step was trained again
        found[one["step"]] = one
    return [found[step] for step in sorted(found)]


def _spelled(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}


def sinks(run: RunDir, spec: RunSpec, attempt: int) -> list[Sink]:
    """What rank 0 writes to, in the order of writing."""
    return [JsonLines(run, attempt=attempt), Progress(run, attempt, spec.trainer.steps)]
