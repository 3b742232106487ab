"""Inside a fork server: what it imports, its loop, and how a forked child becomes a process of its own."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
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
from collections.abc import Callable, Sequence
from types import ModuleType

from zephon.agent.fork_messages import (
    ChildEnded,
    ChildSaid,
    ChildStarted,
    ForkMessage,
    ForkOrder,
    KillOrder,
    Start,
    TellOrder,
    decode,
    encode,
)
from zephon.exits import die_with_parent
from zephon.handover import LINE


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
    children = _Children(link, [wake, wakened])
    buffer = b""
    while True:
        ready, _, _ = select.select([link, wake, *children.lines.values()], [], [])
        if wake in ready:
            wake.recv(4096)
        children.relay(ready)
        children.reap()
        if link in ready:
            data = link.recv(65536)
            if not data:
                os._exit(0)
            buffer += data
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                children.carry_out(decode(line))


_BLOCKED = (signal.SIGTERM, signal.SIGHUP)


class _Children:
    """The server's processes by pid, and the lines of those that have one by handle."""

    def __init__(self, link: socket.socket, own: Sequence[socket.socket]) -> None:
        self._link, self._own = link, own
        self._handles: dict[int, int] = {}
        self._heard: dict[int, bytes] = {}
        self.lines: dict[int, socket.socket] = {}

    def carry_out(self, order: ForkMessage) -> None:
        if isinstance(order, KillOrder):
            for pid, handle in self._handles.items():
                if handle == order.handle:
                    send = os.killpg if order.signal == signal.SIGKILL else os.kill
                    with contextlib.suppress(ProcessLookupError):
                        send(pid, order.signal)
        elif isinstance(order, TellOrder):
            if order.handle in self.lines:
                with contextlib.suppress(OSError):  # it has ended, or does not listen: its end or its silence is noticed
                    self.lines[order.handle].sendall(order.text.encode() + b"\n")
        elif isinstance(order, ForkOrder):
            self._fork(order)

    def relay(self, ready: Sequence[object]) -> None:
        """Passes on what children have written."""
        for handle, line in list(self.lines.items()):
            if line not in ready:
                continue
            try:
                data = line.recv(65536)
            except OSError:
                data = b""
            if not data:
                self.lines.pop(handle).close()
                continue
            *texts, self._heard[handle] = (self._heard.get(handle, b"") + data).split(b"\n")
            for text in texts:
                self._link.sendall(encode(ChildSaid(handle, text.decode("utf-8", "replace"))))

    def reap(self) -> None:
        while self._handles:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            handle = self._handles.pop(pid)
            self._heard.pop(handle, None)
            if handle in self.lines:
                self.lines.pop(handle).close()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # what the child started in its group ends with it
            peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
            self._link.sendall(encode(ChildEnded(handle, os.waitstatus_to_exitcode(status), time.time(), peak)))

    def _fork(self, order: ForkOrder) -> None:
        server = os.getpid()
        ours, theirs = socket.socketpair() if order.line else (None, None)
        # These signals wait until the child has its own handlers: the child inherits that the server ignores them, and would
        # lose an early stop for good.
        signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        pid = os.fork()
        if pid == 0:
            _become(order, server, theirs, close=[self._link, *self._own, *self.lines.values(), *([ours] if ours else [])])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)
        if ours is not None and theirs is not None:
            theirs.close()
            ours.settimeout(1.0)  # a child that does not read must not hold up the others
            self.lines[order.handle] = ours
        if not order.session:
            with contextlib.suppress(OSError):  # the child does the same: the first one counts
                os.setpgid(pid, pid)
        self._handles[pid] = order.handle
        self._link.sendall(encode(ChildStarted(order.handle, pid)))


def _become(process: Start, server: int, line: socket.socket | None, *, close: Sequence[socket.socket]) -> None:
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
            redirect(process.log)
        for name, value in process.env.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if line is not None:
            os.environ[LINE] = str(line.detach())
        sys.argv = [process.module, *process.argv]
        code = _exit_code(lambda: runpy.run_module(process.module, run_name="__main__", alter_sys=True))
    except BaseException:  # noqa: BLE001 - the last line of a process: it must end here, with its traceback in the log
        traceback.print_exc()
    finally:
        _finish(code)


def redirect(path: str) -> None:
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
