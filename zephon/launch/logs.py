"""Logs of a run: all nodes and ranks merged by time of arrival, the first error of the first failing rank on top."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from zephon.errors import ConfigError
from zephon.launch import control
from zephon.launch.arguments import Arguments
from zephon.launch.status import LIVE, look
from zephon.rundir import RunDir

_LEVELS = {"debug": 0, "info": 1, "warning": 2, "error": 3}
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?)")
_LEVEL = re.compile(r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b| ([DIWEC]) [\w.]+:")
_ERROR = re.compile(r"error|exception|traceback|critical|fatal", re.IGNORECASE)


def show(rundir: RunDir, arguments: Arguments, console: Console) -> int:
    """Prints the newest attempt's logs; with ``--follow`` until the run ends."""
    rank, level = arguments.flags.get("--rank"), arguments.flags.get("--level", "debug").lower()
    if level not in _LEVELS:
        raise ConfigError(
            f"--level {level} is unknown", follows="nothing could be filtered", remedy=f"one of {', '.join(_LEVELS)}"
        )
    status = look(rundir)
    if status.error:
        console.print(f"first error: {status.error}", style="bold red", markup=False, highlight=False)
    directory = Path(rundir.path("attempts", RunDir.attempt_name(status.attempt), "logs"))
    offsets: dict[Path, int] = {}
    while True:
        live = arguments.has("--follow") and look(rundir).state in LIVE
        for name, line in merged(directory, offsets, rank=rank):
            if level_of(line) >= _LEVELS[level]:
                console.print(f"{name} | {line}", markup=False, highlight=False)
        if not live:
            return 0
        time.sleep(0.3)


def show_remote(rundir: RunDir, arguments: Arguments, console: Console) -> int:
    """The same for a run on a cluster: node by node, ``--rank`` naming the node; one node can be followed."""
    attempt, rank = rundir.attempts()[-1], arguments.flags.get("--rank")
    one = rank is not None and rank.isdigit()
    for index in [int(rank or 0)] if one else range(look(rundir).target):
        for line in control.log_lines(rundir, attempt, index, follow=one and arguments.has("--follow")):
            console.print(f"node-{index} | {line.rstrip()}", markup=False, highlight=False)
    return 0


def merged(directory: Path, offsets: dict[Path, int], *, rank: str | None = None) -> Iterator[tuple[str, str]]:
    """New lines since ``offsets`` (which is moved on), by their time stamps; a line without one stays with the line before."""
    entries: list[tuple[str, int, str, str]] = []
    for path in sorted(directory.rglob("*.log")):
        if rank is not None and path.stem != f"rank-{rank}":
            continue
        name = path.relative_to(directory).with_suffix("").as_posix()
        stamp = ""
        for number, line in enumerate(_new_lines(path, offsets)):
            found = _STAMP.search(line[:40])
            stamp = found[1].replace(" ", "T").replace(",", ".") if found else stamp
            entries.append((stamp, number, name, line))
    for _, _, name, line in sorted(entries, key=lambda entry: entry[0]):
        yield name, line


def _new_lines(path: Path, offsets: dict[Path, int]) -> list[str]:
    with open(path, "rb") as file:
        file.seek(offsets.get(path, 0))
        text = file.read()
    end = text.rfind(b"\n") + 1
    offsets[path] = offsets.get(path, 0) + end
    return text[:end].decode(errors="replace").splitlines()


def level_of(line: str) -> int:
    """0 debug to 3 error, from a level word in the line; lines without one are information, or errors if they say so."""
    found = _LEVEL.search(line)
    if found is None:
        return 3 if _ERROR.search(line) else 1
    letter = (found[1] or found[2])[0]
    return {"D": 0, "I": 1, "W": 2, "E": 3, "C": 3}[letter]
