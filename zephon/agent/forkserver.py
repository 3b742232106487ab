"""A fork server: import once, then start processes in hundredths of a second.

    owner ── socketpair, JSON lines ── server (one thread, everything imported) ── fork ── child, child, ...
      {"start": 7, module, argv, env, log}       ->  {"started": 7, "pid": 4711}
      {"kill": 7, "signal": 15}
                                                 <-  {"exited": 7, "status": -9, "time": ...}

The server never starts a thread and never touches a GPU, so a forked child is as good as a new interpreter. Children end
with the server, and the server with its owner, whatever ends the owner (``PR_SET_PDEATHSIG`` works through kill -9).
What it gives up: modules that change the process at import do so once, in the server.
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
from typing import Any

from zephon.exits import die_with_parent


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
    """One process to start.

    Args:
        module: what ``python -m`` would run.
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


class ForkServer:
    """The owner's side. ``fork`` makes the server out of this process as it is; ``poll`` never blocks."""

    def __init__(self, pid: int, link: socket.socket) -> None:
        self.pid = pid
        self._link = link
        self._buffer = b""
        self._next = 0
        self.pids: dict[int, int] = {}
        self.exits: dict[int, tuple[int, float]] = {}

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

    def start(self, what: Start) -> int:
        """Asks for a process and returns its handle at once; ``pids`` knows its pid when it exists.

        Raises:
            ConnectionError: the server has ended.
        """
        self._next += 1
        self._send({"start": self._next, **dataclasses.asdict(what)})
        return self._next

    def kill(self, handle: int, sig: signal.Signals) -> None:
        """Signals the process, with SIGKILL its whole group, if it has not been reaped."""
        if handle not in self.exits:
            with contextlib.suppress(ConnectionError):
                self._send({"kill": handle, "signal": int(sig)})

    def poll(self) -> None:
        """Takes in what the server has reported; ``exits`` maps handle -> (status as Popen.returncode, unix time)."""
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

    def _send(self, message: Mapping[str, Any]) -> None:
        try:
            self._link.sendall(json.dumps(message).encode() + b"\n")
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
            message = json.loads(line)
            if "started" in message:
                self.pids[message["started"]] = message["pid"]
            else:
                self.exits[message["exited"]] = (message["status"], message["time"])


def preload(modules: Sequence[str]) -> None:
    """Imports modules, with ``package.*`` all below a package but ``__main__``; then freezes what exists for cheap forks.

    What cannot be imported (an optional back end) is skipped: the worker that needs it will name it.
    The native libraries read their thread counts once, when they are loaded: one thread per process unless the user has
    said otherwise, since several ranks share a machine and a spinning pool of each would slow all of them down.
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
    """The server's loop, until its owner goes."""
    wake, wakened = socket.socketpair()
    wake.setblocking(False)
    wakened.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(sig, signal.SIG_IGN)  # its owner's signals are its owner's business
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
                _obey(json.loads(line), link, children, close=[link, wake, wakened])


def _reap(link: socket.socket, children: dict[int, int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        handle = children.pop(pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # whatever the child left in its group ends with it
        report = {"exited": handle, "status": os.waitstatus_to_exitcode(status), "time": time.time()}
        link.sendall(json.dumps(report).encode() + b"\n")


_HELD = (signal.SIGTERM, signal.SIGHUP)


def _obey(message: dict[str, Any], link: socket.socket, children: dict[int, int], *, close: Sequence[socket.socket]) -> None:
    if "kill" in message:
        for pid, handle in children.items():
            if handle == message["kill"]:
                send = os.killpg if message["signal"] == signal.SIGKILL else os.kill
                with contextlib.suppress(ProcessLookupError):
                    send(pid, message["signal"])
        return
    server = os.getpid()
    # Held back until the child has handlers of its own: it inherits our ignoring, and a signal that comes in between,
    # such as an early stop, would be lost for good.
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    pid = os.fork()
    if pid == 0:
        _become(message, server, close)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
    if not message["session"]:
        with contextlib.suppress(OSError):  # both sides do it, so that neither can be late
            os.setpgid(pid, pid)
    children[pid] = message["start"]
    link.sendall(json.dumps({"started": message["start"], "pid": pid}).encode() + b"\n")


def _become(message: dict[str, Any], server: int, close: Sequence[socket.socket]) -> None:
    """The forked child: never returns."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for sig in (signal.SIGCHLD, *_HELD):
            signal.signal(sig, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
        for connection in close:
            connection.close()
        if message["session"]:
            os.setsid()
        else:
            os.setpgid(0, 0)
        die_with_parent(server)
        if message["log"]:
            _redirect(message["log"])
        for name, value in message["env"].items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        sys.argv = [message["module"], *message["argv"]]
        code = _exit_code(lambda: runpy.run_module(message["module"], run_name="__main__", alter_sys=True))
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
