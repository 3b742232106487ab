"""One holder per run: a lease in the run directory that expires when nobody renews it.

On the holder's own machine its process counts too, so a killed holder frees the run at once. On another machine only the
clock counts, so clocks must differ by less than LEASE_S. A second start is refused, and the error names the holder.

Of several takers of an expired lease exactly one gets it: a file lock decides on a local disk, a conditional write on S3. On
other stores a taker writes the lease and reads it again: two takers both win if the second writes after the first has read.
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

from zephon.errors import ConfigError
from zephon.fastjson import Json
from zephon.run.directory import NO_LOCKS, RunDir, as_bytes
from zephon.run.plain import as_record

LEASE_S = 30.0
RENEW_S = 2.0
_TRIES = 5
_FILE, _LOCK = "lease.json", "lease.lock"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeaseEntry:
    """Who holds the run.

    Args:
        holder: a name to show.
        token: proves who holds the lease; a process that is given it may take the lease over.
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
        if abs(time.time() - self.time) > LEASE_S:  # one from the future is by a clock that cannot be compared with this one
            return False
        if self.host != socket.gethostname():
            return True
        import psutil  # what only shows a run reads leases of other machines

        try:
            process = psutil.Process(self.pid)
            return abs(process.create_time() - self.started) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    @property
    def ours(self) -> bool:
        """Whether this very process holds it."""
        return self.host == socket.gethostname() and self.pid == os.getpid()


class Lease:
    """``take``, ``renew`` often, ``release``. A process that takes it with the same token takes it over."""

    def __init__(self, rundir: RunDir, *, holder: str, token: str = "") -> None:
        self.rundir, self.holder = rundir, holder
        self.token = token or uuid.uuid4().hex

    def take(self) -> None:
        """Raises ConfigError when somebody else holds the run."""
        with _one_at_a_time(self.rundir):
            self._take()

    def _take(self) -> None:
        for _ in range(_TRIES):  # again if the lease has changed meanwhile
            if self.rundir.create(_FILE, data=self._entry()):
                return
            version = self._version()
            entry = read_lease(self.rundir)
            if entry is not None and entry.token != self.token and entry.binds:
                raise self._held(entry)
            if version is not None and self.rundir.replace(_FILE, data=as_bytes(self._entry()), version=version):
                break
        if (after := read_lease(self.rundir)) is None or after.token != self.token:
            raise self._lost()

    def renew(self) -> None:
        """Raises ConfigError when the lease has been taken by somebody else."""
        version = self._version()
        entry = read_lease(self.rundir)
        if entry is not None and entry.token != self.token:
            raise self._lost()
        if version is None:
            self.rundir.create(_FILE, data=self._entry())
        else:
            self.rundir.replace(_FILE, data=as_bytes(self._entry()), version=version)  # if it fails, the next renewal raises

    def release(self) -> None:
        entry = read_lease(self.rundir)
        if entry is not None and entry.token == self.token:
            self.rundir.fs.rm_file(self.rundir.path(_FILE))

    def _entry(self) -> Json:
        import psutil

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
        """The lease's version, to be asked for before the lease is read; None when there is no lease."""
        try:
            return self.rundir.version(_FILE)
        except FileNotFoundError:
            return None

    def _held(self, entry: LeaseEntry) -> ConfigError:
        age = time.time() - entry.time
        return ConfigError(
            f"the run {self.rundir.url} is held by {entry.holder} (pid {entry.pid} on {entry.host}, last seen {age:.0f} s ago)",
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
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise  # a file system without locks lets two through in one moment; the attempts' claims keep them apart
        yield


def read_lease(rundir: RunDir) -> LeaseEntry | None:
    """The lease, if there is one. A file that is not a lease holds nothing."""
    return as_record(LeaseEntry, rundir.find_json(_FILE))
