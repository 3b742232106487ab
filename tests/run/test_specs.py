"""The specs of a run: what a start stores is what every other process reads."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.agent.toy import toy_spec
from zephon.errors import ConfigError
from zephon.run.directory import RunDir
from zephon.run.specs import find_spec, first_spec, has_spec, new_attempt, newest_spec, read_spec, write_spec


def test_each_attempt_has_its_own_spec_and_the_run_keeps_that_of_its_first_start(tmp_path: Path) -> None:
    rundir = RunDir(str(tmp_path / "run"))
    first = toy_spec(tmp_path, nodes=1)
    second = dataclasses.replace(first, nodes=2)
    assert [new_attempt(rundir, first), new_attempt(rundir, second)] == [1, 2]
    assert (read_spec(rundir, 1), read_spec(rundir, 2)) == (first, second)
    assert (first_spec(rundir), newest_spec(rundir)) == (first, second)


def test_two_starts_at_once_get_two_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rundir = RunDir(str(tmp_path / "run"))
    new_attempt(rundir, toy_spec(tmp_path))
    monkeypatch.setattr(rundir, "attempts", list)  # as the other one saw it when it began
    assert new_attempt(rundir, toy_spec(tmp_path)) == 2


def test_a_spec_that_was_handed_over_is_read_like_any_other(tmp_path: Path) -> None:
    rundir = RunDir(str(tmp_path / "run"))
    assert not has_spec(rundir, 3)
    write_spec(rundir, 3, toy_spec(tmp_path))
    assert has_spec(rundir, 3)
    assert read_spec(rundir, 3) == toy_spec(tmp_path)


def test_a_missing_spec_is_named_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"attempts/0007/spec\.json does not exist"):
        read_spec(RunDir(str(tmp_path)), 7)


def test_a_spec_that_is_torn_missing_or_of_another_version_is_not_found(tmp_path: Path) -> None:
    rundir = RunDir(str(tmp_path / "run"))
    assert find_spec(rundir, 1) is None
    attempt = new_attempt(rundir, toy_spec(tmp_path))
    path = Path(rundir.path("attempts", "0001", "spec.json"))
    whole = path.read_text()
    path.write_text(whole[:-20])
    assert find_spec(rundir, attempt) is None
    path.write_text(whole.replace('"global_batch_size"', '"batch_of_tomorrow"'))
    assert find_spec(rundir, attempt) is None
