"""What the owner of a fork server and the server write to each other: one JSON object a line, one type a message."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
    """One process to start.

    Args:
        module: the module, as ``python -m`` takes it.
        argv: its arguments.
        env: added to the server's environment; a value of None removes the name.
        log: file that gets stdout and stderr, appended; the server's own when None.
        session: give it a session of its own (else only a process group of its own).
        line: give it a line to the owner (zephon/handover.py): what it writes is in ``said``, and ``tell`` writes to it.
    """

    module: str
    argv: Sequence[str] = ()
    env: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    log: str | None = None
    session: bool = False
    line: bool = False


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


@dataclasses.dataclass(frozen=True)
class TellOrder:
    """Write this text on a process's line, if it has one and has not been reaped."""

    handle: int
    text: str


@dataclasses.dataclass(frozen=True)
class ChildSaid:
    """A process has written this text on its line."""

    handle: int
    text: str


ForkMessage = ForkOrder | KillOrder | TellOrder | ChildStarted | ChildEnded | ChildSaid
_KINDS: dict[str, type[ForkMessage]] = {
    kind.__name__: kind for kind in (ForkOrder, KillOrder, TellOrder, ChildStarted, ChildEnded, ChildSaid)
}


def encode(message: ForkMessage) -> bytes:
    """A message as a line."""
    return json.dumps({"kind": type(message).__name__, **dataclasses.asdict(message)}).encode() + b"\n"


def decode(line: bytes) -> ForkMessage:
    """The message of a line."""
    fields = json.loads(line)
    return _KINDS[fields.pop("kind")](**fields)
