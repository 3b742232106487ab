"""A fork server: import once, then start processes in hundredths of a second.

    owner ── socketpair, JSON lines ── server (one thread, everything imported) ── fork ── child, child, ...
      owner -> ForkOrder, KillOrder
      owner <- ChildStarted, ChildEnded

The server never starts a thread and never touches a GPU, so a forked child is as good as a new interpreter. Children end
with the server and the server ends with its owner, even by kill -9 (``PR_SET_PDEATHSIG``). The price: a module that changes
the process at import does so once, in the server.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

from zephon.exits import die_with_parent


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
    """One process to start.

    Args:
        module: the module, as ``python -m`` takes it.
        argv: its arguments.
        env: added to the server's environment; a value of None removes the name.
        log: file that gets stdout and stderr, appended; the server's own when None.
        session: give it a session of its own (else only a process group of its own).
    """

    module: str
    argv: Sequence[str] = ()
    env: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    log: str | None = None
    session: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForkOrder(Start):
    """Start this process, which is called ``handle`` from now on."""

    handle: int


@dataclasses.dataclass(frozen=True)
class KillOrder:
    """Send a signal to a process, if it has not been reaped; SIGKILL goes to its whole group."""

    handle: int
    signal: int


@dataclasses.dataclass(frozen=True)
class ChildStarted:
    """The process exists."""

    handle: int
    pid: int


@dataclasses.dataclass(frozen=True)
class ChildEnded:
    """The process has ended, with a status as ``Popen.returncode`` has it, at this unix time, after holding ``peak`` bytes."""

    handle: int
    status: int
    time: float
    peak: int


_Message = ForkOrder | KillOrder | ChildStarted | ChildEnded
_KINDS: dict[str, type[_Message]] = {kind.__name__: kind for kind in (ForkOrder, KillOrder, ChildStarted, ChildEnded)}


def _encode(message: _Message) -> bytes:
    return json.dumps({"kind": type(message).__name__, **dataclasses.asdict(message)}).encode() + b"\n"


def _decode(line: bytes) -> _Message:
    fields = json.loads(line)
    return _KINDS[fields.pop("kind")](**fields)


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
                    _redirect(log)
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

    def poll(self) -> None:
        """Reads the server's reports.

        ``exits`` maps handle -> (status as Popen.returncode, unix time), ``peaks`` handle -> the most memory it held, in bytes.
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

    def _send(self, order: ForkOrder | KillOrder) -> None:
        try:
            self._link.sendall(_encode(order))
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
            report = _decode(line)
            if isinstance(report, ChildStarted):
                self.pids[report.handle] = report.pid
            elif isinstance(report, ChildEnded):
                self.exits[report.handle] = (report.status, report.time)
                self.peaks[report.handle] = report.peak


def preload(modules: Sequence[str]) -> None:
    """Imports modules (``package.*``: all below a package but ``__main__``), then freezes all objects, which makes forks cheap.

    A module that cannot be imported (an optional back end) is skipped: the worker that needs it raises the better error.
    Native libraries read their thread counts once, when they are loaded. They get one thread per process unless the user has
    set another number: several ranks share a machine, and the spinning pools of all ranks would slow each other down.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    for name in modules:
        with contextlib.suppress(ImportError):
            module = importlib.import_module(name.removesuffix(".*"))
            if name.endswith(".*"):
                _import_below(module)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise RuntimeError(f"importing {', '.join(modules)} has initialized CUDA: forked workers could not use it")
    gc.collect()
    gc.freeze()


def _import_below(package: ModuleType) -> None:
    for info in pkgutil.walk_packages(package.__path__, package.__name__ + ".", onerror=lambda _: None):
        if not info.name.rsplit(".", 1)[-1].startswith("__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(info.name)


def serve(link: socket.socket) -> None:
    """The server's loop; ends with its owner."""
    wake, wakened = socket.socketpair()
    wake.setblocking(False)
    wakened.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(sig, signal.SIG_IGN)  # the owner decides when the server ends
    signal.set_wakeup_fd(wakened.fileno(), warn_on_full_buffer=False)
    children: dict[int, int] = {}
    buffer = b""
    while True:
        ready, _, _ = select.select([link, wake], [], [])
        if wake in ready:
            wake.recv(4096)
        _reap(link, children)
        if link in ready:
            data = link.recv(65536)
            if not data:
                os._exit(0)
            buffer += data
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                _carry_out(_decode(line), link, children, close=[link, wake, wakened])


def _reap(link: socket.socket, children: dict[int, int]) -> None:
    while children:
        pid, status, usage = os.wait4(-1, os.WNOHANG)
        if pid == 0:
            return
        handle = children.pop(pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # what the child started in its group ends with it
        peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        link.sendall(_encode(ChildEnded(handle, os.waitstatus_to_exitcode(status), time.time(), peak)))


_BLOCKED = (signal.SIGTERM, signal.SIGHUP)


def _carry_out(order: _Message, link: socket.socket, children: dict[int, int], *, close: Sequence[socket.socket]) -> None:
    if isinstance(order, KillOrder):
        for pid, handle in children.items():
            if handle == order.handle:
                send = os.killpg if order.signal == signal.SIGKILL else os.kill
                with contextlib.suppress(ProcessLookupError):
                    send(pid, order.signal)
    elif isinstance(order, ForkOrder):
        _fork(order, link, children, close)


def _fork(order: ForkOrder, link: socket.socket, children: dict[int, int], close: Sequence[socket.socket]) -> None:
    server = os.getpid()
    # These signals wait until the child has its own handlers: the child inherits that the server ignores them, and would
    # lose an early stop for good.
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    pid = os.fork()
    if pid == 0:
        _become(order, server, close)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)
    if not order.session:
        with contextlib.suppress(OSError):  # the child does the same: the first one counts
            os.setpgid(pid, pid)
    children[pid] = order.handle
    link.sendall(_encode(ChildStarted(order.handle, pid)))


def _become(process: Start, server: int, close: Sequence[socket.socket]) -> None:
    """The forked child: never returns."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for sig in (signal.SIGCHLD, *_BLOCKED):
            signal.signal(sig, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)
        for inherited in close:
            inherited.close()
        if process.session:
            os.setsid()
        else:
            os.setpgid(0, 0)
        die_with_parent(server)
        if process.log:
            _redirect(process.log)
        for name, value in process.env.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        sys.argv = [process.module, *process.argv]
        code = _exit_code(lambda: runpy.run_module(process.module, run_name="__main__", alter_sys=True))
    except BaseException:  # noqa: BLE001 - the last line of a process: it must end here, with its traceback in the log
        traceback.print_exc()
    finally:
        _finish(code)


def _redirect(path: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    os.close(out)
    os.close(null)


def _exit_code(call: Callable[[], object]) -> int:
    try:
        call()
    except SystemExit as end:
        if end.code is None:
            return 0
        if isinstance(end.code, int):
            return end.code & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    return 0


def _finish(code: int) -> None:
    """What the interpreter does at its end, without tearing down the modules that the server shares."""
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
