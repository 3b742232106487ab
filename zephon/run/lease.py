"""One holder per run: a lease in the run directory that expires when nobody renews it.

On this machine the holder's process is looked at too, so that a killed holder frees the run at once; from another machine
only the clock counts, so that clocks may not differ by as much as LEASE_S. The second start is refused and shown the holder.

Of several that find an expired lease exactly one gets it: on this machine's disks by a file lock, on S3 by a write on the
condition that the lease is still the one that was found expired. Where storage knows no such condition it is written and read
again: there two would both win if the second wrote after the first had read, within the moment that their looks have in common.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import socket
import time
import uuid
from collections.abc import Iterator

import psutil

from zephon.errors import ConfigError
from zephon.fastjson import Json
from zephon.run.directory import RunDir
from zephon.run.plain import as_record

LEASE_S = 30.0
RENEW_S = 2.0
_TRIES = 5
_FILE, _LOCK = "lease.json", "lease.lock"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeaseEntry:
    """Who holds the run.

    Args:
        holder: its name for people.
        token: what it proves itself with; handed over with the lease.
        host, pid, started: its process, and when that began.
        time: when the lease was taken or renewed, in unix seconds.
    """

    holder: str
    token: str
    host: str
    pid: int
    started: float
    time: float

    @property
    def binds(self) -> bool:
        """Whether its process lives, or (from elsewhere) it was renewed lately."""
        if time.time() - self.time > LEASE_S:
            return False
        if self.host != socket.gethostname():
            return True
        try:
            process = psutil.Process(self.pid)
            return abs(process.create_time() - self.started) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


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
        for _ in range(_TRIES):  # again where the lease changed while it was looked at
            if self.rundir.create(_FILE, data=self._entry()):
                return
            version = self._version()
            found = read_lease(self.rundir)
            if found is not None and found.token != self.token and found.binds:
                raise self._held(found)
            if version is not None and self.rundir.replace(_FILE, data=self._entry(), version=version):
                break
        if (after := read_lease(self.rundir)) is None or after.token != self.token:
            raise self._lost()

    def renew(self) -> None:
        """Raises ConfigError when the lease has been taken by somebody else."""
        version = self._version()
        found = read_lease(self.rundir)
        if found is not None and found.token != self.token:
            raise self._lost()
        if version is None:
            self.rundir.create(_FILE, data=self._entry())
        else:
            self.rundir.replace(_FILE, data=self._entry(), version=version)  # where it fails the next look says why

    def release(self) -> None:
        found = read_lease(self.rundir)
        if found is not None and found.token == self.token:
            self.rundir.fs.rm_file(self.rundir.path(_FILE))

    def _entry(self) -> Json:
        process = psutil.Process()
        entry = LeaseEntry(
            holder=self.holder,
            token=self.token,
            host=socket.gethostname(),
            pid=process.pid,
            started=process.create_time(),
            time=time.time(),
        )
        return dataclasses.asdict(entry)

    def _version(self) -> str | None:
        """Of the lease as it stands, to be asked for before it is read; None when there is none."""
        try:
            return self.rundir.version(_FILE)
        except FileNotFoundError:
            return None

    def _held(self, found: LeaseEntry) -> ConfigError:
        age = time.time() - found.time
        return ConfigError(
            f"the run {self.rundir.url} is held by {found.holder} (pid {found.pid} on {found.host}, last seen {age:.0f} s ago)",
            follows="two starts would write one run directory at the same time",
            remedy="use status, rescale or stop on the running attempt, or wait until the lease has expired",
        )

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
    with open(rundir.path(_LOCK), "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read_lease(rundir: RunDir) -> LeaseEntry | None:
    """The lease, if there is one. A file that is not a lease holds nothing."""
    return as_record(LeaseEntry, rundir.find_json(_FILE))
