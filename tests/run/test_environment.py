"""What an attempt was started with: what is recorded is what is read, and no secret is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from zephon.run.directory import RunDir
from zephon.run.environment import environment, git_state, read_environment, write_environment


def test_the_record_of_an_attempt_is_read_as_it_was_written(tmp_path: Path) -> None:
    rundir = RunDir(str(tmp_path))
    assert read_environment(rundir, 1) is None
    record = environment(["nodes=2"], {"conf": "exp1"})
    write_environment(rundir, 1, record)
    assert read_environment(rundir, 1) == record
    assert (record.overrides, record.choices, record.cwd) == (("nodes=2",), {"conf": "exp1"}, os.getcwd())
    assert record.packages["torch"]


def test_no_environment_variable_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "a-secret-word")
    rundir = RunDir(str(tmp_path))
    write_environment(rundir, 1, environment([], {}))
    assert "a-secret-word" not in Path(rundir.path("attempts", "0001", "environment.json")).read_text()


def test_uncommitted_changes_are_named_and_hashed_and_what_they_say_is_not_recorded(tmp_path: Path) -> None:
    assert git_state(str(tmp_path)) is None

    def git(*arguments: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "a").write_text("one\n")
    git("add", "a")
    git("commit", "-qm", "first")
    clean = git_state(str(tmp_path))
    (tmp_path / "a").write_text("two\n")
    changed = git_state(str(tmp_path))
    assert clean is not None
    assert changed is not None
    assert (clean["dirty"], changed["dirty"]) == (False, True)
    assert (clean["changed"], clean["diff_sha256"], changed["changed"]) == ([], None, ["a"])
    (tmp_path / "a").write_text("key=a-secret-word\n")
    other = git_state(str(tmp_path))
    assert other is not None
    assert other["diff_sha256"] != changed["diff_sha256"]
    assert "a-secret-word" not in repr(other)
