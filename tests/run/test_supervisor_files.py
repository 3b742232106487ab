"""The supervisor's files: what is written is read again, tokens stay private, and the lock ends with its process."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from zephon.errors import ConfigError
from zephon.run.attempt import attempt_directory
from zephon.run.directory import RunDir
from zephon.run.lease import Lease
from zephon.run.supervisor_files import (
    ControlPort,
    LocalRequest,
    hold_supervisor_lock,
    read_control_port,
    read_request,
    supervisor_began,
    supervisor_lives,
    write_control_port,
    write_request,
)

HOLD = """
import sys
from pathlib import Path
from zephon.run.supervisor_files import hold_supervisor_lock
hold_supervisor_lock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    rundir = RunDir(str(tmp_path / "exp1"))
    attempt_directory(rundir, 1).mkdir(parents=True)
    return rundir


def test_the_supervisor_reads_the_request_that_was_sent_and_plan_hides_its_token(rundir: RunDir) -> None:
    sent = LocalRequest(
        app_id="exp1-0001-ab", run=rundir.url, attempt=1, nodes=2, args=["--procs", "1"], env={"A": "b"}, worker="w", cwd="/",
        gpus=["0"], lease="secret",
    )  # fmt: skip
    path = write_request(sent)
    assert read_request(path) == sent
    assert path.stat().st_mode & 0o077 == 0, "others could read the token"
    assert "secret" not in str(sent)


def test_verbs_find_the_control_port_once_the_supervisor_listens(rundir: RunDir) -> None:
    assert read_control_port(rundir, 1) is None
    write_control_port(rundir, 1, ControlPort(4711))
    assert read_control_port(rundir, 1) == ControlPort(4711)
    (written,) = attempt_directory(rundir, 1).iterdir()
    assert written.stat().st_mode & 0o077 == 0, "others could read the token"


def test_a_supervisor_lives_until_its_process_ends_however_that_ends(rundir: RunDir) -> None:
    directory = attempt_directory(rundir, 1)
    assert (supervisor_began(rundir, 1), supervisor_lives(rundir, 1)) == (False, False)
    command = [sys.executable, "-c", HOLD, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert supervisor_lives(rundir, 1)
        second = subprocess.run(
            [sys.executable, "-c", HOLD, str(directory)], input="", capture_output=True, text=True, check=False
        )
        assert "BlockingIOError" in second.stderr
        holder.kill()
    assert (supervisor_began(rundir, 1), supervisor_lives(rundir, 1)) == (True, False)


def test_a_file_system_without_locks_is_named_with_the_file_and_the_lease_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with pytest.raises(ConfigError, match=r"supervisor\.lock cannot be locked: its file system has no file locks"):
        hold_supervisor_lock(tmp_path)
    Lease(RunDir(str(tmp_path)), holder="me").take()
    with pytest.raises(ConfigError, match="held by me"):
        Lease(RunDir(str(tmp_path)), holder="other").take()
