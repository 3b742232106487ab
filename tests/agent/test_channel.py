"""Handshake and sealed lines: what opens, and everything that does not."""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from zephon.agent import channel
from zephon.agent.channel import NONCE, PROOF, Handshake, Lines, NotAuthentic, Purpose, connect

SECRET = b"known to the processes of one attempt"


def lines() -> tuple[Lines, Lines]:
    """Both ends of one direction."""
    return Lines(b"key"), Lines(b"key")


def test_what_was_sealed_opens_at_the_other_end_in_order() -> None:
    ours, theirs = lines()
    for line in (b"first\n", b"\n", b"third \x00\xff line\n"):
        assert theirs.open(ours.seal(line)) == line


@pytest.mark.parametrize("attack", ["repeated", "left out", "exchanged", "changed", "cut", "sent back", "of another key"])
def test_a_line_that_was_not_sent_so_does_not_open(attack: str) -> None:
    ours, theirs = lines()
    first, second = ours.seal(b"first\n"), ours.seal(b"second\n")
    if attack in ("repeated", "cut", "changed"):
        theirs.open(first)
    received = {
        "repeated": first,
        "left out": second,
        "exchanged": second,
        "changed": second.replace(b"second", b"sekond"),
        "cut": second[:-3],
        "sent back": Lines(b"other direction").seal(b"first\n"),
        "of another key": Lines(b"other").seal(b"first\n"),
    }[attack]
    with pytest.raises(NotAuthentic):
        theirs.open(received)


@pytest.mark.parametrize("garbage", [b"", b"\n", b"{}\n", b"GET / HTTP/1.1\r\n", b"\xff" * 200 + b"\n", b"0" * 64 + b" \n"])
def test_garbage_does_not_open(garbage: bytes) -> None:
    with pytest.raises(NotAuthentic):
        Lines(b"key").open(garbage)


def test_proofs_and_keys_differ_by_secret_purpose_side_and_nonce() -> None:
    given = itertools.product([SECRET, b"another secret"], ["coordinator", "control"], [b"s" * NONCE, b"t" * NONCE])
    seen = set()
    purpose: Purpose
    for secret, purpose, nonce in given:  # type: ignore[assignment]
        handshake = Handshake(secret, purpose, server=nonce, client=b"c" * NONCE)
        seen |= {handshake.proof("client"), handshake.proof("server")}
        seen |= {handshake.lines("client").seal(b""), handshake.lines("server").seal(b"")}
    assert len(seen) == 8 * 4


class Server:
    """The other end of ``connect``, as a test plays it."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.received = b""

    def play(self, *steps: bytes | int) -> None:
        """In a thread: bytes are sent, a number of bytes is waited for, and then the connection is closed."""

        def run() -> None:
            link, _ = self.socket.accept()
            with link, link.makefile("rb") as file:
                for step in steps:
                    if isinstance(step, int):
                        self.received += file.read(step)
                    else:
                        link.sendall(step)

        self.thread = threading.Thread(target=run)
        self.thread.start()

    def connect(self, secret: bytes = SECRET) -> tuple[Lines, Lines]:
        with socket.create_connection(self.socket.getsockname()) as link:
            return connect(link, secret, "coordinator")


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.thread.join(10)
    made.socket.close()


def test_a_client_sends_nothing_but_its_proof_to_a_server_that_has_none(server: Server) -> None:
    server.play(os.urandom(NONCE), NONCE + PROOF, bytes(PROOF))
    with pytest.raises(NotAuthentic, match="the server does not know"):
        server.connect()
    server.thread.join(10)
    assert len(server.received) == NONCE + PROOF
    assert SECRET not in server.received


def test_a_client_does_not_take_its_own_proof_for_the_servers(server: Server) -> None:
    """A stranger in the coordinator's place sends back what it is sent."""

    def run() -> None:
        link, _ = server.socket.accept()
        with link, link.makefile("rb") as file:
            link.sendall(bytes(NONCE))
            link.sendall(file.read(NONCE + PROOF)[NONCE:])

    server.thread = threading.Thread(target=run)
    server.thread.start()
    with pytest.raises(NotAuthentic, match="the server does not know"):
        server.connect()


def test_a_server_that_closes_is_told_from_one_that_answers(server: Server) -> None:
    server.play(os.urandom(NONCE), NONCE + PROOF)
    with pytest.raises(NotAuthentic, match="closed before both ends"):
        server.connect()


def test_a_server_that_sends_a_byte_now_and_then_is_given_up_in_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "HANDSHAKE_S", 0.3)
    stop = threading.Event()

    def run() -> None:
        link, _ = server.socket.accept()
        with link:
            while not stop.wait(0.1):
                link.sendall(b"x")

    server.thread = threading.Thread(target=run)
    server.thread.start()
    began = time.monotonic()
    with pytest.raises(NotAuthentic, match=r"no proof of the attempt's secret within 0\.3 s"):
        server.connect()
    assert time.monotonic() - began < 2.0
    stop.set()
