"""The commands that a supervisor takes at its control port: one connection a command, one JSON line each way.

verb -> {"verb": "stop"}  or  {"verb": "rescale", "nodes": 4}
verb <- {"ok": true}      or  {"ok": false, "what": ..., "follows": ..., "remedy": ...}
"""

from __future__ import annotations

import dataclasses
import json

from zephon.errors import ConfigError, ZephonError


@dataclasses.dataclass(frozen=True)
class Stop:
    """Finish the step, save and end."""


@dataclasses.dataclass(frozen=True)
class Rescale:
    """Train on this many nodes from now on."""

    nodes: int


Command = Stop | Rescale


def encode(command: Command) -> bytes:
    """A command as a line."""
    return json.dumps({"verb": type(command).__name__.lower(), **dataclasses.asdict(command)}).encode() + b"\n"


def decode(line: bytes) -> Command:
    """The command of a line.

    Raises:
        ValueError: the line is not a command.
    """
    match json.loads(line):
        case {"verb": "stop"}:
            return Stop()
        case {"verb": "rescale", "nodes": int(nodes)}:
            return Rescale(nodes)
    raise ValueError(f"not a command: {line[:100]!r}")


def encode_reply(refusal: ZephonError | None) -> bytes:
    """The reply to a command that was carried out, or was refused with this error."""
    reply: dict[str, object] = {"ok": refusal is None}
    if refusal is not None:
        reply |= {"what": refusal.what, "follows": refusal.follows, "remedy": refusal.remedy}
    return json.dumps(reply).encode() + b"\n"


def check_reply(line: bytes) -> None:
    """Raises ConfigError: the supervisor refused the command, or closed the connection without a reply."""
    match json.loads(line or b"{}"):
        case {"ok": True}:
            return
        case {"what": what, "follows": follows, "remedy": remedy}:
            raise ConfigError(what, follows=follows, remedy=remedy)
    raise ConfigError(
        "the supervisor did not answer",
        follows="the command had no effect",
        remedy="look at `status` and the supervisor's log",
    )
