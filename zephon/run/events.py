"""What happened to the run, one JSON line each: ``{"time", "attempt", "who", "event", ...}`` in ``events.jsonl``.

On a file system of this machine a line is appended with one write, which is atomic for lines of this size; on an object
store, which cannot append, every writer has a file of its own below ``events/`` that it replaces as a whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Self

from zephon.run.directory import RunDir

FILE = "events.jsonl"
_FOLDER = "events"
_KEYS = ("time", "attempt", "who", "event")


@dataclasses.dataclass(frozen=True)
class Event:
    """One event.

    Args:
        time: in unix seconds.
        attempt: during which it happened.
        who: launcher, supervisor, coordinator, ...
        kind: what happened; the key ``event`` of the line.
        details: the rest of the line.
    """

    time: float
    attempt: int
    who: str
    kind: str
    details: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {"time": self.time, "attempt": self.attempt, "who": self.who, "event": self.kind, **self.details}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        details = {name: value for name, value in data.items() if name not in _KEYS}
        return cls(data["time"], data["attempt"], data["who"], data["event"], details)


class EventLog:
    """Appends events of one process. Constructing touches nothing.

    Args:
        quiet: an event that cannot be written is let go: for a reader that may not write.
    """

    def __init__(self, rundir: RunDir, attempt: int, who: str, *, quiet: bool = False) -> None:
        self.rundir, self.attempt, self.who, self.quiet = rundir, attempt, who, quiet
        self._lines: list[str] = []
        self._name = f"{attempt:04d}-{who}-{os.getpid()}-{time.time_ns()}.jsonl"

    def write(self, kind: str, **details: Any) -> None:
        """Adds one event. An event that cannot be written (no space left) goes to stderr, and the caller continues."""
        try:
            self._write(Event(time.time(), self.attempt, self.who, kind, details))
        except OSError as error:
            if self.quiet:
                return
            with contextlib.suppress(OSError):  # stderr may be a file on the same disk
                print(f"event {kind} {details} was not written: {error}", file=sys.stderr, flush=True)

    def _write(self, event: Event) -> None:
        line = json.dumps(event.to_dict(), ensure_ascii=False, default=str)
        if self.rundir.local:
            path = self.rundir.path(FILE)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)  # less the umask, like the other files
            try:
                size = os.fstat(handle).st_size
                torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"  # by a crash: the line begins on its own
                os.write(handle, b"\n" * torn + line.encode() + b"\n")
            finally:
                os.close(handle)
            return
        self._lines.append(line)
        self.rundir.write_bytes(_FOLDER, self._name, data=("\n".join(self._lines) + "\n").encode())


class EventReader:
    """Reads a run's events repeatedly, each byte once, for a caller that follows the run. Constructing touches nothing."""

    def __init__(self, rundir: RunDir) -> None:
        self._rundir = rundir
        self._offsets: dict[str, int] = {}
        self._events: list[Event] = []

    def read(self) -> list[Event]:
        """All events so far, by time. A line that is being written is read the next time."""
        new = [event for path, size in self._files() for event in self._new_in(path, size)]
        if new:
            self._events = sorted([*self._events, *new], key=lambda event: event.time)
        return self._events

    def of_attempt(self, attempt: int) -> list[Event]:
        """Those of one attempt."""
        return [event for event in self.read() if event.attempt == attempt]

    def _files(self) -> list[tuple[str, int]]:
        """Each file with its size."""
        fs, files = self._rundir.fs, []
        with contextlib.suppress(FileNotFoundError):
            files.append((self._rundir.path(FILE), int(fs.size(self._rundir.path(FILE)))))
        with contextlib.suppress(FileNotFoundError):
            listed = fs.ls(self._rundir.path(_FOLDER), detail=True)
            files += sorted((str(info["name"]), int(info["size"])) for info in listed)
        return files

    def _new_in(self, path: str, size: int) -> Iterator[Event]:
        offset = self._offsets.get(path, 0)
        if size <= offset:
            return
        data: bytes = self._rundir.fs.cat_file(path, start=offset, end=size)
        end = data.rfind(b"\n") + 1
        self._offsets[path] = offset + end
        for line in data[:end].split(b"\n"):
            try:
                if line:
                    yield Event.from_dict(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError):  # a crash or a full disk cut it short
                warnings.warn(f"a torn line of {path} was passed over: {line[:40]!r}", stacklevel=2)


def read_events(rundir: RunDir) -> list[Event]:
    """All events of a run by time, once."""
    return EventReader(rundir).read()
