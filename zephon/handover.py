"""What an agent and its worker write to each other, so that a worker may live through a change of members.

    worker -> CanStay        once, when it starts: it takes a new place instead of ending
    agent  -> LeaveGroup        finish the step, keep the state in memory, leave the process group
    worker -> Parked         it has left its process group, by order or because a peer was lost, and waits
    agent  -> Place          the environment of its next place: rank, size, store, generation

One JSON object a line, over a socket that the worker inherits. A parked worker ends by SIGTERM, as any other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import socket
import threading
from collections.abc import Mapping

LINE = "ZEPHON_AGENT_LINE"
"""names the file descriptor of the worker's end in its environment"""

_LOOK_S = 0.05


@dataclasses.dataclass(frozen=True)
class CanStay:
    """This worker can take a new place."""


@dataclasses.dataclass(frozen=True)
class LeaveGroup:
    """Leave the process group and wait for a place."""


@dataclasses.dataclass(frozen=True)
class Parked:
    """Outside any process group, with the state after ``step`` steps; ``lost`` is the error where a peer was lost."""

    step: int
    lost: str | None = None


@dataclasses.dataclass(frozen=True)
class Place:
    """Join the process group that this environment names."""

    env: Mapping[str, str]


FromWorker = CanStay | Parked
ToWorker = LeaveGroup | Place
_KINDS: dict[str, type[FromWorker | ToWorker]] = {kind.__name__: kind for kind in (CanStay, LeaveGroup, Parked, Place)}


def encode(message: FromWorker | ToWorker) -> str:
    """A message as a line, without its end."""
    return json.dumps({"kind": type(message).__name__, **dataclasses.asdict(message)})


def decode(line: str) -> FromWorker | ToWorker:
    """The message of a line.

    Raises:
        ValueError: it is none.
    """
    fields = json.loads(line)
    kind = _KINDS.get(fields.pop("kind", None)) if isinstance(fields, dict) else None
    if kind is None:
        raise ValueError(f"{line[:100]!r} is no message of an agent or a worker")
    try:
        return kind(**fields)
    except TypeError as error:
        raise ValueError(f"{line[:100]!r}: {error}") from error


class AgentLine:
    """The worker's end of the line."""

    def __init__(self, line: socket.socket) -> None:
        self._line, self._buffer = line, b""
        self._received: list[ToWorker] = []
        self._send(CanStay())

    @staticmethod
    def from_environment() -> AgentLine | None:
        """The line that the agent gave this process; None for a process that no agent started."""
        number = os.environ.pop(LINE, None)  # what this process starts must not write on it
        return AgentLine(socket.socket(fileno=int(number))) if number else None

    def asked(self) -> bool:
        """Whether the agent wants this worker to leave its process group. Never waits."""
        self._read(0.0)
        return any(isinstance(message, LeaveGroup) for message in self._received)

    def park(self, parked: Parked) -> None:
        """Says that this worker has left its process group."""
        self._received.clear()
        self._send(parked)

    def wait_place(self, leaving: threading.Event) -> Place | None:
        """The next place of a parked worker; None where it is asked to end, or nobody listens any more."""
        while not leaving.is_set():
            if not self._read(_LOOK_S):
                return None
            places = [message for message in self._received if isinstance(message, Place)]
            if places:
                self._received.clear()
                return places[-1]
        return None

    def _send(self, message: FromWorker) -> None:
        with contextlib.suppress(OSError):  # that nobody listens is noticed at the next look
            self._line.sendall(encode(message).encode() + b"\n")

    def _read(self, timeout: float) -> bool:
        """Takes in what has come within ``timeout`` seconds; False where the agent has gone."""
        while select.select([self._line], [], [], timeout)[0]:
            try:
                data = self._line.recv(65536)
            except OSError:
                data = b""
            if not data:
                return False
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            for line in lines:
                message = decode(line.decode())
                if isinstance(message, LeaveGroup | Place):
                    self._received.append(message)
            timeout = 0.0
        return True
