"""Lines that only two processes with the attempt's secret can exchange (why in this way: docs/security.md).

    server -> nonce                      32 random bytes
    client -> nonce, proof               HMAC-SHA256 of both nonces with the secret
    server -> proof
    then each way   MAC line             the MAC's key comes from secret and nonces, its text begins with the line's number

A recorded connection is worth nothing in another one, and a line that is changed, skipped, repeated or sent back does not
open. Nothing is encrypted. This module does no asyncio: ``door.py`` has the server's end.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import time
from typing import Literal

NONCE = 32
PROOF = hashlib.sha256().digest_size
_MAC = 2 * PROOF
HANDSHAKE_S = 5.0

Purpose = Literal["coordinator", "control"]
"""What a port is for: a proof for one kind of port is none for the other."""


class NotAuthentic(ConnectionError):
    """The other end does not know the secret, or somebody between has changed what it sent."""


class Lines:
    """One direction of a connection; both ends count."""

    def __init__(self, key: bytes) -> None:
        self._key, self._number = key, 0

    def seal(self, line: bytes) -> bytes:
        """The line, which ends with its newline, as it goes over the wire."""
        return self._mac(line) + b" " + line

    def open(self, sealed: bytes) -> bytes:
        """The line that the other end sealed. Raises NotAuthentic: it is not the next one."""
        mac, line = sealed[:_MAC], sealed[_MAC + 1 :]
        if not hmac.compare_digest(mac, self._mac(line)):
            raise NotAuthentic("a line that its sender did not send, or not at this place")
        return line

    def _mac(self, line: bytes) -> bytes:
        number, self._number = self._number, self._number + 1
        return hmac.digest(self._key, number.to_bytes(8, "big") + line, "sha256").hex().encode()


class Handshake:
    """The proofs and keys of one connection, for either end."""

    def __init__(self, secret: bytes, purpose: Purpose, *, server: bytes, client: bytes) -> None:
        self._secret, self._about = secret, purpose.encode() + b"\0" + server + client

    def proof(self, side: Literal["server", "client"]) -> bytes:
        return self._derived(f"proof of {side}")

    def lines(self, sender: Literal["server", "client"]) -> Lines:
        """What ``sender`` sends."""
        return Lines(self._derived(f"lines of {sender}"))

    def check(self, side: Literal["server", "client"], proof: bytes) -> None:
        """Raises NotAuthentic: it is not the proof of that side."""
        if not hmac.compare_digest(proof, self.proof(side)):
            raise NotAuthentic(f"the {side} does not know the secret of this attempt")

    def _derived(self, label: str) -> bytes:
        return hmac.digest(self._secret, b"zephon 1 " + label.encode() + b"\0" + self._about, "sha256")


def connect(link: socket.socket, secret: bytes, purpose: Purpose) -> tuple[Lines, Lines]:
    """The client's handshake on a connected socket: what it seals, and what it opens.

    Raises:
        NotAuthentic: the server did not prove within five seconds that it knows the secret.
    """
    deadline = time.monotonic() + HANDSHAKE_S
    ours, theirs = os.urandom(NONCE), _exactly(link, NONCE, deadline)
    handshake = Handshake(secret, purpose, server=theirs, client=ours)
    link.sendall(ours + handshake.proof("client"))
    handshake.check("server", _exactly(link, PROOF, deadline))
    return handshake.lines("client"), handshake.lines("server")


def _exactly(link: socket.socket, count: int, deadline: float) -> bytes:
    data = b""
    while len(data) < count:
        left = deadline - time.monotonic()
        if left <= 0:
            raise NotAuthentic(f"no proof of the attempt's secret within {HANDSHAKE_S:g} s")
        link.settimeout(left)
        try:
            more = link.recv(count - len(data))
        except TimeoutError:
            continue
        if not more:
            raise NotAuthentic("the connection was closed before both ends had proved that they know the attempt's secret")
        data += more
    return data
