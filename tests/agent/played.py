"""What tests of single parts stand on: a coordinator that a test plays, and a fork server of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from zephon.agent.channel import NONCE, PROOF, Handshake
from zephon.agent.forkserver import ForkServer
from zephon.agent.messages import FROM_AGENT, Beat, FromAgent, ToAgent, decode, encode

SECRET = b"the secret of an attempt of a test"


class Played:
    """A coordinator that is played by a test: accepts one link after another, and says what the test says."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.settimeout(10)
        self.endpoint = f"127.0.0.1:{self.socket.getsockname()[1]}"
        self.connection: socket.socket | None = None

    def accept(self) -> None:
        if self.connection is not None:
            self.drop()
        self.connection, _ = self.socket.accept()
        self.connection.settimeout(10)
        self._lines = self.connection.makefile("rb")
        ours = os.urandom(NONCE)
        self.connection.sendall(ours)
        handshake = Handshake(SECRET, "coordinator", server=ours, client=self._lines.read(NONCE))
        handshake.check("client", self._lines.read(PROOF))
        self.connection.sendall(handshake.proof("server"))
        self._ours, self._theirs = handshake.lines("server"), handshake.lines("client")

    def receive(self) -> FromAgent:
        """The next message that is no sign of life."""
        while isinstance(message := self.receive_any(), Beat):
            pass
        return message

    def receive_any(self) -> FromAgent:
        return decode(self._theirs.open(self._lines.readline()), FROM_AGENT)

    def send(self, *messages: ToAgent) -> None:
        assert self.connection is not None
        self.connection.sendall(b"".join(self._ours.seal(encode(message)) for message in messages))

    def drop(self, *, reset: bool = False) -> None:
        """Closes the connection; with ``reset`` as a machine does that has forgotten it."""
        assert self.connection is not None
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._lines.close()
        self.connection.close()

    def close(self) -> None:
        if self.connection is not None:
            with contextlib.suppress(OSError):
                self.drop()
        self.socket.close()


@pytest.fixture
def coordinator() -> Iterator[Played]:
    made = Played()
    yield made
    made.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ForkServer]:
    """A fork server whose children import from ``tmp_path`` too."""
    # The real owners fork before their first thread and with stdout of their own; pytest's process is past both.
    ours, theirs = socket.socketpair()
    theirs.set_inheritable(True)
    code = f"import socket; from zephon.agent.fork_children import serve; serve(socket.socket(fileno={theirs.fileno()}))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.getcwd()])}
    made = ForkServer(os.posix_spawn(sys.executable, [sys.executable, "-c", code], env), ours)
    theirs.close()
    yield made
    made.close()
