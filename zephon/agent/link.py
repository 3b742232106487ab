"""The agent's connection to the coordinator: one thread that reads, sends heartbeats and reconnects.

The agent's main thread asks ``rerendezvous``, ``finished`` and ``wait``; it never blocks on the network. While the coordinator
is away, workers train on; the link reconnects with growing pauses until ``join_timeout_s`` has passed. Then it repeats the
node's last messages about its state, from which a new coordinator rebuilds its own.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time

from zephon.agent.channel import Lines, NotAuthentic, connect
from zephon.agent.messages import (
    TO_AGENT,
    Assign,
    BadMessage,
    Beat,
    Exited,
    Finish,
    FromAgent,
    Hello,
    Leaving,
    Ready,
    Released,
    Rerendezvous,
    RunStage,
    StageEnded,
    StageStarted,
    Standby,
    ToAgent,
    WithdrawStage,
    decode,
    encode,
)
from zephon.errors import ConfigError

_MAX_LINE = 1 << 20  # no message is nearly as long


def parse_endpoint(text: str) -> tuple[str, int]:
    """``host:port`` as a pair; an IPv6 host stands in brackets."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"endpoint {text!r} is not HOST:PORT",
            follows="the nodes could not find each other",
            remedy="give --endpoint or ZEPHON_ENDPOINT as host:port, for example 10.0.0.7:29400",
        )
    return host.strip("[]"), int(port)


class Link:
    """Call ``start`` once; use as a context manager or ``close``.

    Args:
        endpoint: ``host:port`` of the coordinator.
        node: this node's identity; two processes never share one.
        secret: the attempt's, by which both ends know each other.
        beat_s: seconds between signs of life.
        timeout_s: how long to look for the coordinator before giving up.
    """

    def __init__(self, endpoint: str, node: str, *, secret: bytes, beat_s: float, timeout_s: float) -> None:
        self.host, self.port = parse_endpoint(endpoint)
        self.node, self._secret, self._beat_s, self._timeout_s = node, secret, beat_s, timeout_s
        self._lock = threading.Condition()
        self._outbox: list[FromAgent] = []
        self._generation: int | None = None
        self._repeated: dict[str, FromAgent] = {}
        self._assigned: Assign | None = None
        self._rerendezvous: Rerendezvous | None = None
        self.stage: RunStage | WithdrawStage | None = None
        """the coordinator's last order about stages"""
        self.finished: Finish | None = None
        """how the job has ended"""
        self.standby = False
        """whether a generation was formed without this node since it was ready"""
        self.failed: str | None = None
        """why the coordinator is given up"""
        self.released = threading.Event()
        """set when nobody needs this leaving node any more"""
        self.address = ""
        self._closing = False
        self._wake, self._wakened = socket.socketpair()
        self._thread = threading.Thread(target=self._loop, name="coordinator-link", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Sends what is waiting and ends the thread."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._wake.send(b"x")
        self._thread.join(timeout=5)
        self._wake.close()
        self._wakened.close()

    def send(self, message: FromAgent) -> None:
        """Queues a message. A message about this node's state is sent again after a reconnect, until it is out of date."""
        with self._lock:
            match message:
                case Ready():
                    self._rerendezvous, self._generation, self.standby = None, None, False
                    self._repeated = {"ready": message, **{key: m for key, m in self._repeated.items() if key == "stage"}}
                case Leaving():
                    self._repeated["leaving"] = message
                case Exited():
                    self._repeated["exited"] = message
                case StageStarted() | StageEnded():
                    self._repeated["stage"] = message
            self._outbox.append(message)
        with contextlib.suppress(OSError):
            self._wake.send(b"x")

    def wait_assignment(self, timeout: float | None, stop: threading.Event) -> Assign | None:
        """The next assignment; None when the job has finished, the link has failed, ``stop`` is set or time is up."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while self._assigned is None:
                if self.finished or self.failed or stop.is_set() or (deadline is not None and time.monotonic() > deadline):
                    return None
                self._lock.wait(0.1)
            assigned, self._assigned = self._assigned, None
            self._rerendezvous, self._generation, self._repeated = None, assigned.generation, {}
            return assigned

    def rerendezvous(self, generation: int) -> Rerendezvous | None:
        """The order to stop this generation, if it has come."""
        order = self._rerendezvous
        return order if order is not None and order.generation == generation else None

    def wait_address(self, timeout: float) -> str:
        """This node's own address as the coordinator's network sees it."""
        deadline = time.monotonic() + timeout
        with self._lock:
            while not self.address and not self.failed and time.monotonic() < deadline:
                self._lock.wait(0.1)
            return self.address

    def _loop(self) -> None:
        away = time.monotonic()
        pause = 0.05
        while not self._closing:
            try:
                with socket.create_connection((self.host, self.port), timeout=5.0) as link:
                    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    ours, theirs = connect(link, self._secret, "coordinator")
                    pause = 0.05
                    try:
                        self._exchange(link, ours, theirs)
                    finally:
                        away = time.monotonic()
            except OSError as error:
                if time.monotonic() - away > self._timeout_s:
                    with self._lock:
                        self.failed = f"coordinator {self.host}:{self.port} not reached for {self._timeout_s:g} s ({error})"
                        self._lock.notify_all()
                    return
            if self.finished or self._closing:
                return
            with contextlib.suppress(OSError, ValueError):
                select.select([self._wakened], [], [], pause)
            pause = min(2.0, pause * 2)

    def _exchange(self, link: socket.socket, ours: Lines, theirs: Lines) -> None:
        with self._lock:
            self.address = link.getsockname()[0]
            self._outbox = list(self._repeated.values())
            hello = Hello(self.node, os.getpid(), socket.gethostname(), self._generation)
            self._lock.notify_all()
        link.sendall(ours.seal(encode(hello)))
        link.settimeout(10.0)
        buffer, beaten = b"", time.monotonic()
        while True:
            with self._lock:
                outbox, self._outbox = self._outbox, []
            if outbox:
                link.sendall(b"".join(ours.seal(encode(message)) for message in outbox))
            if self._closing:
                return
            if time.monotonic() - beaten >= self._beat_s:
                beaten = time.monotonic()
                link.sendall(ours.seal(encode(Beat())))
            ready, _, _ = select.select([link, self._wakened], [], [], min(self._beat_s, 0.5))
            if self._wakened in ready:
                self._wakened.recv(4096)
            if link in ready:
                data = link.recv(65536)
                if not data:
                    return
                *lines, buffer = (buffer + data).split(b"\n")
                for line in lines:
                    self._received(_decoded(theirs.open(line + b"\n")))
                if len(buffer) > _MAX_LINE:
                    raise NotAuthentic(f"a line of more than {_MAX_LINE} bytes")

    def _received(self, message: ToAgent) -> None:
        with self._lock:
            match message:
                case Assign():
                    self._assigned = message
                case Standby():
                    self.standby = True
                case Rerendezvous():
                    self._rerendezvous = message
                case RunStage() | WithdrawStage():
                    self.stage = message
                case Finish():
                    self.finished = message
                    self.released.set()
                case Released():
                    self.released.set()
            self._lock.notify_all()


def _decoded(line: bytes) -> ToAgent:
    """A line that is not a message counts as a broken connection: the link connects again."""
    try:
        return decode(line, TO_AGENT)
    except BadMessage as error:
        raise ConnectionError(str(error)) from error
