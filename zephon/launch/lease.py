"""One holder per run: a lease in the run directory that expires when nobody renews it.

On this machine the holder's process is looked at too, so that a killed holder frees the run at once; from another machine
only the clock counts. The second start is refused and shown the holder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
import uuid
from collections.abc import Iterator
from typing import Any

import psutil

from zephon.errors import ConfigError
from zephon.rundir import RunDir

LEASE_S = 30.0
RENEW_S = 2.0


class Lease:
    """``take``, ``renew`` now and then, ``release``. Taking again with the same token hands the lease over."""

    def __init__(self, rundir: RunDir, *, holder: str, token: str = "") -> None:
        self.rundir, self.holder = rundir, holder
        self.token = token or uuid.uuid4().hex

    def take(self) -> None:
        """Raises ConfigError when somebody else holds the run."""
        with _one_at_a_time(self.rundir):
            self._take()

    def _take(self) -> None:
        if self.rundir.create("lease.json", data=self._entry()):
            return
        found = read_lease(self.rundir)
        if found is not None and found["token"] != self.token and alive(found):
            age = time.time() - found["time"]
            raise ConfigError(
                f"the run {self.rundir.url} is held by {found['holder']} (pid {found['pid']} on {found['host']}, "
                f"last seen {age:.0f} s ago)",
                follows="two starts would write one run directory at the same time",
                remedy="use status, rescale or stop on the running attempt, or wait until the lease has expired",
            )
        self.rundir.write_json("lease.json", data=self._entry())
        if (after := read_lease(self.rundir)) is None or after["token"] != self.token:
            raise self._lost()

    def renew(self) -> None:
        """Raises ConfigError when the lease has been taken by somebody else."""
        found = read_lease(self.rundir)
        if found is not None and found["token"] != self.token:
            raise self._lost()
        self.rundir.write_json("lease.json", data=self._entry())

    def release(self) -> None:
        found = read_lease(self.rundir)
        if found is not None and found["token"] == self.token:
            self.rundir.fs.rm_file(self.rundir.path("lease.json"))

    def _entry(self) -> dict[str, Any]:
        process = psutil.Process()
        return {
            "holder": self.holder,
            "token": self.token,
            "host": socket.gethostname(),
            "pid": process.pid,
            "started": process.create_time(),
            "time": time.time(),
        }

    def _lost(self) -> ConfigError:
        return ConfigError(
            f"the lease of {self.rundir.url} was taken by another process",
            follows="two attempts would write one run directory at the same time",
            remedy="look at `status`; this attempt has ended itself",
        )


@contextlib.contextmanager
def _one_at_a_time(rundir: RunDir) -> Iterator[None]:
    """Taking an expired lease is two writes; on this machine a file lock keeps two takers apart."""
    if not rundir.local:
        yield
        return
    os.makedirs(rundir.root, exist_ok=True)
    with open(rundir.path("lease.lock"), "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read_lease(rundir: RunDir) -> dict[str, Any] | None:
    """The lease as it stands, if there is one."""
    try:
        found: dict[str, Any] = rundir.read_json("lease.json")
    except (FileNotFoundError, ValueError):
        return None
    return found


def alive(found: dict[str, Any]) -> bool:
    """Whether a lease still binds: its process lives, or (from elsewhere) it was renewed lately."""
    if time.time() - found["time"] > LEASE_S:
        return False
    if found["host"] != socket.gethostname():
        return True
    try:
        process = psutil.Process(found["pid"])
        return abs(process.create_time() - found["started"]) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
