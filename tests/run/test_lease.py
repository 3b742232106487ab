"""The lease of a run: who holds it, until when, and who gets it then."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from pathlib import Path

import pytest

from zephon.errors import ConfigError
from zephon.run.directory import RunDir
from zephon.run.lease import LEASE_S, Lease, read_lease


def test_a_lease_frees_itself_when_its_holder_is_killed_or_stops_renewing(tmp_path: Path) -> None:
    rundir = RunDir(str(tmp_path / "run"))
    code = "from zephon.run.lease import Lease; from zephon.run.directory import RunDir; "
    code += f"Lease(RunDir({rundir.url!r}), holder='other').take()"
    code += "; print('taken', flush=True); import time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"taken\n"
        mine = Lease(rundir, holder="me")
        with pytest.raises(ConfigError, match=f"held by other \\(pid {holder.pid}"):
            mine.take()
        holder.kill()
        holder.wait()
    mine.take()
    found = read_lease(rundir)
    assert found is not None
    assert found.holder == "me"
    assert not dataclasses.replace(found, time=found.time - LEASE_S - 1).binds
    assert not dataclasses.replace(found, time=found.time + 300 * 86400, host="elsewhere").binds, "a clock that is wrong"
    assert dataclasses.replace(found, host="elsewhere").binds
    with pytest.raises(ConfigError, match="taken by another process"):
        Lease(rundir, holder="old").renew()
    mine.release()
    assert read_lease(rundir) is None


def test_a_lease_is_handed_over_with_its_token(tmp_path: Path) -> None:
    rundir = RunDir(str(tmp_path))
    first = Lease(rundir, holder="launcher")
    first.take()
    second = Lease(rundir, holder="supervisor", token=first.token)
    second.take()
    before = read_lease(rundir)
    time.sleep(0.01)
    second.renew()
    after = read_lease(rundir)
    assert before is not None
    assert after is not None
    assert (before.holder, after.token) == ("supervisor", first.token)
    assert after.time > before.time


def test_a_release_of_a_lease_that_another_holds_changes_nothing(tmp_path: Path) -> None:
    rundir = RunDir(str(tmp_path))
    Lease(rundir, holder="me").take()
    Lease(rundir, holder="other").release()
    found = read_lease(rundir)
    assert found is not None
    assert found.holder == "me"


@pytest.mark.parametrize("text", ['"a text"', '{"token": "t", "host": "h"}', "[]", '{"token'])
def test_a_file_that_is_not_a_lease_holds_no_run(tmp_path: Path, text: str) -> None:
    rundir = RunDir(str(tmp_path))
    (tmp_path / "lease.json").write_text(text)
    assert read_lease(rundir) is None
    mine = Lease(rundir, holder="me")
    mine.take()
    mine.renew()
    found = read_lease(rundir)
    assert found is not None
    assert found.holder == "me"
