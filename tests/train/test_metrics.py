"""What is written, and that a curve shows each step once."""

from __future__ import annotations

import math

import pytest

from tests.train.synthetic import spec
from zephon.run.directory import RunDir
from zephon.run.metrics import MetricsFile, series
from zephon.run.progress import read_progress
from zephon.train.metrics import Clock, Console, ProgressFile, sinks

VALUES = {"loss": 1.5, "grad_norm": 1.0, "lr": 0.1, "tokens_per_s": 10.0, "digest": "ab" * 32, "world_size": 2, "generation": 3}
VALUES["seconds"] = {"step": 0.5}


def test_steps_trained_twice_appear_once_with_the_later_attempt(tmp_path):
    run = RunDir(str(tmp_path))
    for attempt, steps in [(1, range(1, 8)), (2, range(6, 11))]:
        lines = MetricsFile(tmp_path / "metrics.jsonl", attempt)
        for step in steps:
            lines.write(step, VALUES)
        lines.close()
    found = series(run)
    assert [one["step"] for one in found] == list(range(1, 11))
    assert [one["attempt"] for one in found] == [1] * 5 + [2] * 5


def test_a_line_torn_by_a_crash_costs_only_itself(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "attempt": 1}\n{"step": 1, "att')
    lines = MetricsFile(tmp_path / "metrics.jsonl", 2)
    lines.write(1, VALUES)
    lines.close()
    assert [(one["step"], one["attempt"]) for one in series(RunDir(str(tmp_path)))] == [(0, 1), (1, 2)]


def test_a_loss_that_is_not_a_number_is_shown_as_such(tmp_path, capsys):
    bad = {**VALUES, "loss": math.nan}
    for sink in (MetricsFile(tmp_path / "metrics.jsonl", 1), Console(9, 1), ProgressFile(RunDir(str(tmp_path)), 1, 9)):
        sink.write(0, bad)
        sink.close()
    assert series(RunDir(str(tmp_path)))[0]["loss"] == "nan"
    assert "loss nan" in capsys.readouterr().out
    progress = read_progress(RunDir(str(tmp_path)), 1)
    assert math.isnan(progress.loss)


def test_progress_has_the_steps_done(tmp_path):
    progress = ProgressFile(RunDir(str(tmp_path)), 4, 20)
    for step in range(3):
        progress.write(step, VALUES)
    progress.close()
    found = read_progress(RunDir(str(tmp_path)), 4)
    assert (found.step, found.steps, found.began, found.world_size, found.generation) == (3, 20, 0, 2, 3)


def test_the_time_left_follows_from_the_newest_steps_without_the_first(tmp_path):
    progress = ProgressFile(RunDir(str(tmp_path)), 1, 100)
    for step, seconds in enumerate((60.0, 2.0, 4.0)):
        progress.write(step, {**VALUES, "seconds": {"step": seconds}})
    progress.close()
    found = read_progress(RunDir(str(tmp_path)), 1)
    assert (found.step_s, found.pace_s, found.left_s) == (4.0, 3.0, 97 * 3.0)


def test_a_log_that_is_no_terminal_gets_a_plain_line_every_so_often(capsys):
    console = Console(7, 3)
    for step in range(7):
        console.write(step, {**VALUES, "eval_loss": 2.5})
    console.close()
    out = capsys.readouterr().out
    assert [line.split()[3] for line in out.splitlines()] == ["3/7", "6/7", "7/7"]
    assert "held-out loss 2.5" in out
    assert "\r" not in out


def test_tensorboard_is_written_by_default(tmp_path):
    pytest.importorskip("tensorboard")
    found = sinks(RunDir(str(tmp_path)), spec(trainer__tensorboard=True), 1)
    for sink in found:
        sink.write(0, VALUES)
        sink.close()
    assert list((tmp_path / "tensorboard").glob("events.*"))


def test_the_clock_adds_up_phases_and_starts_over():
    clock = Clock()
    for _ in range(2):
        with clock("data"):
            pass
    total, phases = clock.lap()
    assert set(phases) == {"data"}
    assert 0 <= phases["data"] <= total
    assert clock.lap()[1] == {}
