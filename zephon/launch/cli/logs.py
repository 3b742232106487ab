"""Logs of a run: all nodes and ranks merged by the time of their lines, the first error of the first failing rank on top.

A worker's log has a mark for each generation, ``--- 2026-01-01T10:00:00Z generation 3 rank 2 of 4``: ranks move between
generations, so a line belongs to the global rank of the mark above it.
"""

from __future__ import annotations

import dataclasses
import os
import re
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from rich.console import Console

from zephon.errors import ConfigError, ZephonError
from zephon.launch.backends.registry import backend_of
from zephon.launch.cli.arguments import Arguments
from zephon.launch.cli.grammar import LEVELS
from zephon.launch.cli.views import run_of
from zephon.launch.status import LIVE, RunStatus, status_of
from zephon.run.attempt import fetch_logs, logs_of, shared_logs
from zephon.run.directory import RunDir
from zephon.run.events import EventReader

_STAMP = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:[.,](\d{1,6})\d*)?(Z?)")
_MARK = re.compile(r"--- \S+ generation \d+ rank (\d+) of \d+")
_AT_EXIT = re.compile(r"Traceback |\[rank \d+\] [A-Z]\w*: ")  # what a process writes when it ends
_LEVEL = re.compile(r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b| ([DIWEC]) [\w.]+:")
_ERROR = re.compile(r"error|exception|traceback|critical|fatal", re.IGNORECASE)


def logs(arguments: Arguments, console: Console) -> int:
    """Prints the newest attempt's logs; with ``--follow`` until the run ends."""
    rundir = run_of(arguments)
    here = backend_of(rundir, rundir.attempts()[-1]).here
    return (_show if here else _show_remote)(rundir, arguments, console)


def _show(rundir: RunDir, arguments: Arguments, console: Console) -> int:
    status = status_of(rundir)
    _first_error(status, console)
    directory = logs_of(rundir, status.attempt)
    if not directory.exists() and not rundir.local:
        with tempfile.TemporaryDirectory() as folder:
            fetch_logs(rundir, status.attempt, Path(folder))
            tails: dict[Path, Tail] = {}
            _print(Path(folder), tails, arguments, console, tail=arguments.tail)
            _check_rank(tails, arguments.rank, status)
        return 0
    _print_files(rundir, directory, arguments, console)
    return 0


def _first_error(status: RunStatus, console: Console) -> None:
    if status.error:
        console.print(f"first error: {status.error}", style="bold red", markup=False, highlight=False)


def _print_files(rundir: RunDir, directory: Path, arguments: Arguments, console: Console) -> None:
    tails: dict[Path, Tail] = {}
    events, tail = EventReader(rundir), arguments.tail
    while True:
        status = status_of(rundir, events=events)
        live = arguments.follow and status.state in LIVE
        _print(directory, tails, arguments, console, tail=tail)
        tail = None  # the lines that follow are all new
        if not live or status.world_size:  # while it starts, the rank may still come
            _check_rank(tails, arguments.rank, status)
        if not live:
            return
        time.sleep(0.3)


def _print(directory: Path, tails: dict[Path, Tail], arguments: Arguments, console: Console, *, tail: int | None) -> None:
    lines = merged(directory, tails, rank=arguments.rank)
    wanted = (f"{name} | {line}" for name, line in lines if level_of(line) >= LEVELS.index(arguments.level))
    for line in wanted if tail is None else deque(wanted, maxlen=tail):
        console.print(line, markup=False, highlight=False)


def _check_rank(tails: dict[Path, Tail], rank: int | None, status: RunStatus) -> None:
    """Refuses a rank that the attempt has not had: no line of it would ever come."""
    ranks = sorted(set().union(*(tail.ranks for tail in tails.values()), range(status.world_size)))
    if rank is not None and rank not in ranks:
        raise ConfigError(
            f"attempt {status.attempt} of {status.name} has no rank {rank}",
            follows="no line would be shown",
            remedy=f"its ranks are {', '.join(map(str, ranks))}" if ranks else "leave --rank out: no rank has written yet",
        )


def _show_remote(rundir: RunDir, arguments: Arguments, console: Console) -> int:
    """The same for a run on a cluster: the files of ranks and stages in the run directory, and the logs of the pods.

    Where the run directory is no file system of this machine all is in the pods: node by node, ``--rank`` naming the node, of
    which one can be followed.
    """
    status, rank = status_of(rundir), arguments.rank
    _first_error(status, console)
    directory = Path(shared_logs(rundir, status.attempt))
    files = rundir.local and directory.exists()
    if files:
        _print_files(rundir, directory, arguments, console)
        if rank is not None or arguments.follow:
            return 0
    follow = rank is not None and arguments.follow
    if follow and arguments.tail is not None:
        raise ConfigError(
            "--tail cannot be combined with --follow where the logs are in the pods",
            follows="the end of a log that grows is not known",
            remedy="leave one of the two out",
        )
    for index in [rank] if rank is not None else range(status.target):
        try:
            lines = backend_of(rundir, status.attempt).log_lines(rundir, status.attempt, index, follow=follow)
            wanted = (line.rstrip() for line in lines if level_of(line) >= LEVELS.index(arguments.level))
            for line in wanted if arguments.tail is None else deque(wanted, maxlen=arguments.tail):
                console.print(f"node-{index} | {line}", markup=False, highlight=False)
        except ZephonError as error:
            if not files:
                raise
            console.print(f"node-{index} | --- {error.what}", markup=False, highlight=False)
    return 0


@dataclasses.dataclass
class Tail:
    """One log file as far as it has been read: time and global rank of its last line, and the ranks of all its lines."""

    path: Path
    name: str
    offset: int = 0
    time: float = 0.0
    rank: int | None = None
    ranks: set[int] = dataclasses.field(default_factory=set)

    def read(self) -> Iterator[tuple[float, int | None, str, str]]:
        """New whole lines: (time, rank, label, line). A line without a stamp has the time of the line before."""
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            text = file.read()
            written = os.fstat(file.fileno()).st_mtime
        end = text.rfind(b"\n") + 1
        self.offset += end
        lines = text[:end].decode(errors="replace").splitlines()
        stamps = [stamp_of(line) for line in lines]
        last = max((number for number, stamp in enumerate(stamps) if stamp is not None), default=-1)
        for number, (line, stamp) in enumerate(zip(lines, stamps, strict=True)):
            if stamp is None and number > last and _AT_EXIT.match(line):
                stamp = written  # they end the file, so the file's own time is theirs
            self.time = max(self.time, stamp or 0.0)
            mark = _MARK.match(line)
            if mark:
                self.rank = int(mark[1])
                self.ranks.add(self.rank)
            yield self.time, self.rank, self._label(), line

    def _label(self) -> str:
        return self.name if self.rank is None else f"rank {self.rank} ({self.name.partition('/')[0]})"


def merged(directory: Path, tails: dict[Path, Tail], *, rank: int | None = None) -> Iterator[tuple[str, str]]:
    """(label, line) of all lines since the last call with these ``tails``, by time; with ``rank``, those of one global rank."""
    entries: list[tuple[float, int | None, str, str]] = []
    for path in sorted(directory.rglob("*.log")):
        name = path.relative_to(directory).with_suffix("").as_posix()
        entries += tails.setdefault(path, Tail(path, name)).read()
    for _, owner, label, line in sorted(entries, key=lambda entry: entry[0]):
        if rank is None or owner == rank:
            yield label, line


def stamp_of(line: str) -> float | None:
    """Seconds since 1970 of a line that begins with a time of day, in local time or with Z."""
    stamp = _STAMP.search(line[:40])
    if stamp is None:
        return None
    try:
        when = datetime.fromisoformat(stamp[1].replace(" ", "T") + ("+00:00" if stamp[3] else ""))
    except ValueError:
        return None
    return when.timestamp() + float(f"0.{stamp[2] or 0}")


def level_of(line: str) -> int:
    """0 debug to 3 error, from the name of a level in the line; lines without one are information, or errors if they say so."""
    level = _LEVEL.search(line)
    if level is None:
        return 3 if _ERROR.search(line) else 1
    letter = (level[1] or level[2])[0]
    return {"D": 0, "I": 1, "W": 2, "E": 3, "C": 3}[letter]
