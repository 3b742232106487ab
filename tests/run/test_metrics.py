"""metrics.jsonl: its writer and its reader, over a crash and on an object store."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from zephon.run import metrics
from zephon.run.directory import RunDir
from zephon.run.metrics import MetricsFile, series
from zephon.run.mirror import Mirror


@pytest.fixture(params=["file", "memory"])
def rundir(request: pytest.FixtureRequest, tmp_path: Path) -> RunDir:
    return RunDir(str(tmp_path) if request.param == "file" else f"memory://{tmp_path.name}-{time.time_ns()}")


def write(rundir: RunDir, attempt: int, steps: range, *, loss: float = 1.5) -> None:
    mirror = Mirror(rundir, metrics.FILE)
    lines = MetricsFile(mirror.path, attempt)
    for step in steps:
        lines.write(step, {"loss": loss})
    lines.close()
    mirror.close()


def test_a_run_without_steps_has_no_series(rundir: RunDir) -> None:
    assert series(rundir) == []


def test_steps_trained_twice_appear_once_with_the_later_attempt(rundir: RunDir) -> None:
    write(rundir, 1, range(5))
    write(rundir, 2, range(3, 7))
    attempts = {line["step"]: line["attempt"] for line in series(rundir)}
    assert attempts == {0: 1, 1: 1, 2: 1, 3: 2, 4: 2, 5: 2, 6: 2}


def test_a_loss_that_is_not_a_number_is_a_word(rundir: RunDir) -> None:
    write(rundir, 1, range(1), loss=math.nan)
    assert series(rundir) == [{"step": 0, "attempt": 1, "loss": "nan"}]


def test_an_object_store_has_every_step_of_a_push() -> None:
    rundir = RunDir(f"memory://metrics-{time.time_ns()}")
    mirror = Mirror(rundir, metrics.FILE)
    lines = MetricsFile(mirror.path, 1)
    lines.write(0, {})
    mirror.push()
    lines.write(1, {})
    assert [line["step"] for line in series(rundir)] == [0]
    lines.close()
    mirror.close()
    assert [line["step"] for line in series(rundir)] == [0, 1]
    assert not mirror.path.exists()
