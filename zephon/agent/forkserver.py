"""A fork server: import once, then start processes in hundredths of a second.

    owner ── socketpair, JSON lines ── server (one thread, everything imported) ── fork ── child, child, ...
      owner -> ForkOrder, KillOrder, TellOrder
      owner <- ChildStarted, ChildEnded, ChildSaid

The server never starts a thread and never touches a GPU, so a forked child is as good as a new interpreter. Children end
with the server and the server ends with its owner, even by kill -9 (``PR_SET_PDEATHSIG``). The price: a module that changes
the process at import does so once, in the server.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Sequence

from zephon.agent.fork_children import preload, redirect, serve
from zephon.agent.fork_messages import (
    ChildEnded,
    ChildSaid,
    ChildStarted,
    ForkOrder,
    KillOrder,
    Start,
    TellOrder,
    decode,
    encode,
)
from zephon.exits import die_with_parent


class ForkServer:
    """The owner's side. ``fork`` makes the server out of this process as it is; ``poll`` never blocks."""

    def __init__(self, pid: int, link: socket.socket) -> None:
        self.pid = pid
        self._link = link
        self._buffer = b""
        self._next = 0
        self.pids: dict[int, int] = {}
        self.exits: dict[int, tuple[int, float]] = {}
        self.peaks: dict[int, int] = {}
        self.said: dict[int, list[str]] = {}

    @classmethod
    def fork(cls, modules: Sequence[str] = (), *, log: str | None = None) -> ForkServer:
        """Forks the server from this process, which must still have one thread; it imports ``modules`` before it serves."""
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            try:
                ours.close()
                die_with_parent(parent)
                if log:
                    redirect(log)
                preload(modules)
                serve(theirs)
            except BaseException:  # noqa: BLE001 - a forked copy must never return into its owner's code
                traceback.print_exc()
            finally:
                os._exit(1)
        theirs.close()
        return cls(pid, ours)

    def fileno(self) -> int:
        return self._link.fileno()

    def start(self, process: Start) -> int:
        """Orders a process and returns its handle at once; ``pids`` has its pid once it exists.

        Raises:
            ConnectionError: the server has ended.
        """
        self._next += 1
        self._send(ForkOrder(handle=self._next, **vars(process)))
        return self._next

    def kill(self, handle: int, sig: signal.Signals) -> None:
        """Signals the process, with SIGKILL its whole group, if it has not been reaped."""
        if handle not in self.exits:
            with contextlib.suppress(ConnectionError):
                self._send(KillOrder(handle, int(sig)))

    def tell(self, handle: int, text: str) -> None:
        """Writes a text on the process's line."""
        if handle not in self.exits:
            with contextlib.suppress(ConnectionError):
                self._send(TellOrder(handle, text))

    def poll(self) -> None:
        """Reads the server's reports.

        ``exits`` maps handle -> (status as Popen.returncode, unix time), ``peaks`` handle -> the most memory it held, in bytes,
        and ``said`` handle -> the texts on its line, which the reader takes out.
        """
        while select.select([self._link], [], [], 0)[0]:
            self._receive()

    def close(self) -> None:
        """Ends the server and everything it started; a second call does nothing."""
        if self._link.fileno() < 0:
            return
        self._link.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _send(self, order: ForkOrder | KillOrder | TellOrder) -> None:
        try:
            self._link.sendall(encode(order))
        except OSError as error:
            raise ConnectionError(f"the fork server (pid {self.pid}) has ended") from error

    def _receive(self) -> None:
        try:
            data = self._link.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            raise ConnectionError(f"the fork server (pid {self.pid}) has ended")
        self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            report = decode(line)
            if isinstance(report, ChildStarted):
                self.pids[report.handle] = report.pid
            elif isinstance(report, ChildEnded):
                self.exits[report.handle] = (report.status, report.time)
                self.peaks[report.handle] = report.peak
            elif isinstance(report, ChildSaid):
                self.said.setdefault(report.handle, []).append(report.text)
