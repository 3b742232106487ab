"""The attempt's directory on this machine, and its logs in the run directory."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from zephon.run.attempt import attempt_directory, fetch_logs, hand_in_logs, logs_of
from zephon.run.directory import RunDir


@pytest.fixture
def far() -> RunDir:
    fsspec.filesystem("memory").store.clear()
    return RunDir("memory://runs/far")


def write_log(rundir: RunDir, name: str, text: str) -> None:
    path = logs_of(rundir, 3) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def test_logs_that_one_machine_hands_in_are_what_another_one_fetches(
    far: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "one"))
    logs = {"node-0/rank-0.log": "step 1\n", "node-1/rank-1.log": "öäü\n", "stages/evaluate.log": ""}
    for name, text in logs.items():
        write_log(far, name, text)
    hand_in_logs(far, 3)
    fetch_logs(far, 3, tmp_path / "fetched")
    fetched = {
        str(path.relative_to(tmp_path / "fetched")): path.read_text("utf-8") for path in (tmp_path / "fetched").rglob("*.log")
    }
    assert fetched == logs


def test_an_attempt_without_logs_gives_an_empty_folder(far: RunDir, tmp_path: Path) -> None:
    fetch_logs(far, 1, tmp_path / "fetched")
    assert not (tmp_path / "fetched").exists()


def test_attempts_and_runs_have_directories_of_their_own(far: RunDir) -> None:
    other = RunDir("memory://runs/other")
    assert len({attempt_directory(run, attempt) for run in (far, other) for attempt in (1, 2)}) == 4
