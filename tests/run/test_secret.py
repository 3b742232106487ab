"""The secret of an attempt: one for all its processes, for nobody else, and not in the run's storage."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from zephon.errors import ConfigError
from zephon.run.attempt import attempt_directory
from zephon.run.directory import RunDir
from zephon.run.secret import FILE, GIVEN, find_secret, forget_secret, make_secret, wait_secret


@pytest.fixture
def rundir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return RunDir(str(tmp_path / "exp1"))


def file_of(rundir: RunDir, attempt: int = 1) -> Path:
    return attempt_directory(rundir, attempt) / FILE


def test_all_processes_of_an_attempt_read_what_the_first_one_made(rundir: RunDir) -> None:
    assert find_secret(rundir, 1) is None
    made = make_secret(rundir, 1)
    assert len(made) == 64
    assert (make_secret(rundir, 1), find_secret(rundir, 1)) == (made, made)
    assert os.listdir(file_of(rundir).parent) == [FILE]
    assert make_secret(rundir, 2) != made, "another attempt has another one"


def test_the_file_is_for_its_owner_alone_whatever_the_umask(rundir: RunDir) -> None:
    before = os.umask(0)
    try:
        make_secret(rundir, 1)
    finally:
        os.umask(before)
    assert file_of(rundir).stat().st_mode & 0o777 == 0o600


def test_of_many_makers_at_once_all_have_the_same(rundir: RunDir) -> None:
    made: list[bytes] = []
    threads = [threading.Thread(target=lambda: made.append(make_secret(rundir, 1))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8
    assert len(set(made)) == 1


def test_a_secret_that_others_can_read_is_refused(rundir: RunDir) -> None:
    make_secret(rundir, 1)
    file_of(rundir).chmod(0o640)
    with pytest.raises(ConfigError, match="has mode 640, so others know it"):
        make_secret(rundir, 1)


def test_a_secret_of_another_user_is_refused_but_for_root(rundir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    made, owner = make_secret(rundir, 1), file_of(rundir).stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(ConfigError, match=f"belongs to user {owner}, and this process is of user {owner + 1}"):
        find_secret(rundir, 1)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert find_secret(rundir, 1) == made


def test_a_link_that_somebody_laid_there_is_refused(rundir: RunDir, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("0" * 64)
    theirs.chmod(0o600)
    file_of(rundir).parent.mkdir(parents=True)
    file_of(rundir).symlink_to(theirs)
    with pytest.raises(ConfigError, match="cannot be read"):
        make_secret(rundir, 1)


def test_an_empty_or_short_file_is_no_secret(rundir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = tmp_path / "given"
    monkeypatch.setenv(GIVEN, str(given))
    with pytest.raises(ConfigError, match="given, is not there"):
        find_secret(rundir, 1)
    given.write_text("short\n")
    with pytest.raises(ConfigError, match="holds 5 bytes"):
        make_secret(rundir, 1)
    given.write_text("1" * 64 + "\n")
    assert make_secret(rundir, 1) == b"1" * 64
    assert not file_of(rundir).exists()


def test_an_agent_waits_for_a_coordinator_that_comes_later_and_not_for_ever(rundir: RunDir) -> None:
    with pytest.raises(ConfigError, match=r"has not come within 0\.1 s"):
        wait_secret(rundir, 1, timeout_s=0.1, leaving=threading.Event())
    threading.Timer(0.3, lambda: make_secret(rundir, 1)).start()
    assert len(wait_secret(rundir, 1, timeout_s=10, leaving=threading.Event()) or b"") == 64


def test_an_agent_that_is_asked_to_leave_waits_for_no_secret(rundir: RunDir) -> None:
    leaving, began = threading.Event(), time.monotonic()
    threading.Timer(0.3, leaving.set).start()
    assert wait_secret(rundir, 1, timeout_s=600, leaving=leaving) is None
    assert time.monotonic() - began < 60


def test_a_run_in_an_object_store_keeps_its_secret_on_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    rundir = RunDir("memory://bucket/exp1")
    secret = make_secret(rundir, 1)
    assert rundir.fs.find("/bucket") == []
    assert file_of(rundir).is_relative_to(tmp_path / "state")
    assert find_secret(rundir, 1) == secret


def test_an_attempt_that_has_ended_leaves_no_secret(rundir: RunDir) -> None:
    make_secret(rundir, 1)
    forget_secret(rundir, 1)
    forget_secret(rundir, 1)
    assert find_secret(rundir, 1) is None
