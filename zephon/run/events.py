"""What happened to the run, one JSON line each: ``{"time", "attempt", "who", "event", ...}`` in ``events.jsonl``.

On a file system of this machine a line is appended with one write, which is atomic for lines of this size; on an object
store, which cannot append, every writer has a file of its own below ``events/`` that it replaces as a whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from zephon.run.directory import RunDir


class EventLog:
    """Appends events of one process. Constructing touches nothing."""

    def __init__(self, rundir: RunDir, attempt: int, who: str) -> None:
        self.rundir, self.attempt, self.who = rundir, attempt, who
        self._lines: list[str] = []
        self._name = f"{attempt:04d}-{who}-{os.getpid()}-{time.time_ns()}.jsonl"

    def write(self, event: str, **details: Any) -> None:
        """Adds one event. One that cannot be written (no space left) is told on stderr: what happens matters more."""
        try:
            self._write(event, details)
        except OSError as error:
            with contextlib.suppress(OSError):  # stderr may be a file on the same disk
                print(f"event {event} {details} was not written: {error}", file=sys.stderr, flush=True)

    def _write(self, event: str, details: dict[str, Any]) -> None:
        entry = {"time": time.time(), "attempt": self.attempt, "who": self.who, "event": event, **details}
        line = json.dumps(entry, ensure_ascii=False, default=str)
        if self.rundir.local:
            path = self.rundir.path("events.jsonl")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)  # less the umask, like the other files
            try:
                os.write(handle, line.encode() + b"\n")
            finally:
                os.close(handle)
            return
        self._lines.append(line)
        self.rundir.write_bytes("events", self._name, data=("\n".join(self._lines) + "\n").encode())


def read_events(rundir: RunDir) -> Iterator[dict[str, Any]]:
    """All events of a run by time. A last line that is being written is left out."""
    texts = []
    if rundir.exists("events.jsonl"):
        texts.append(rundir.fs.cat_file(rundir.path("events.jsonl")).decode())
    if rundir.exists("events"):
        texts += [rundir.fs.cat_file(path).decode() for path in sorted(rundir.fs.ls(rundir.path("events"), detail=False))]
    entries = [json.loads(line) for text in texts for line in text.split("\n")[:-1] if line]
    return iter(sorted(entries, key=lambda entry: entry["time"]))
