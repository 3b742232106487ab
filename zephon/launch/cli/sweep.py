"""Sweeps: ``conf=a,b data.seed=1,2,3 -m`` starts independent runs, some at a time, and ends with one table.

A point is its resolved experiment: its run is named by the experiment and a hash of everything but the name, so the same
sweep started again skips what is done, follows what runs, and goes on with what failed. All points are composed before the
first one starts, so a misspelt key costs nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import time
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from rich.console import Console
from rich.live import Live
from rich.table import Table

from zephon.errors import ConfigError, ZephonError
from zephon.exits import Exit
from zephon.launch import start as session
from zephon.launch.cli.arguments import Arguments
from zephon.launch.config.compose import Composed, compose
from zephon.launch.config.overrides import split
from zephon.launch.job import DEFAULT_WORKER
from zephon.launch.status import LIVE, RunStatus, look
from zephon.run.directory import RunDir
from zephon.run.lease import alive, read_lease

DEFAULT_LIMIT = 2
_POLL_S = 0.3


@dataclasses.dataclass
class Point:
    """One run of a sweep. ``state`` is WAITING until it is started."""

    composed: Composed
    varied: tuple[str, ...]
    rundir: RunDir
    state: str = "WAITING"
    status: RunStatus | None = None
    error: str = ""


def expand(words: Sequence[str]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """All combinations of the alternatives: (all words, the varied ones), the last word varying fastest."""
    choices = [_alternatives(word) for word in words]
    varied = [index for index, options in enumerate(choices) if len(options) > 1]
    return [(combination, tuple(combination[i] for i in varied)) for combination in itertools.product(*choices)]


def _alternatives(text: str) -> list[str]:
    """What one word stands for: ``a=1,2``, ``a=range(1,4)``, ``a=choice(x,y)``; a single value stays as typed."""
    word = split(text)
    try:
        parsed = OverridesParser.create().parse_override(text)
    except HydraException:
        parts = (word.value or "").split(",")
        return [f"{word.prefix}{word.key}={part}" for part in parts] if len(parts) > 1 else [text]
    if not parsed.is_sweep_override():
        return [text]
    return [f"{word.prefix}{word.key}={value}" for value in parsed.sweep_string_iterator()]


def points(arguments: Arguments) -> list[Point]:
    """Every point, composed and named.

    Raises:
        ConfigError: any of them cannot work, or two would be the same run.
    """
    made: dict[str, Point] = {}
    for words, varied in expand(arguments.words):
        composed = compose(words, config_dir=arguments.flags.get("--config-dir"))
        spec = composed.spec
        rest = {key: value for key, value in json.loads(spec.canonical_json()).items() if key not in ("name", "runs")}
        digest = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:8]
        spec = dataclasses.replace(spec, name=f"{spec.name[:54]}-{digest}")
        if spec.name in made:
            raise ConfigError(
                f"{' '.join(varied)} and {' '.join(made[spec.name].varied)} are the same experiment",
                follows="one of them would be trained twice",
                remedy="remove the repeated alternative",
            )
        made[spec.name] = Point(dataclasses.replace(composed, spec=spec), varied, session.rundir_of(spec))
    return list(made.values())


def sweep(arguments: Arguments, console: Console) -> int:
    """Runs all points; 0 when every one is done, 1 when any failed, 143 when stopped."""
    text = arguments.flags.get("--limit", str(DEFAULT_LIMIT))
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(
            f"--limit {text} is no number of runs", follows="nothing could start", remedy="give --limit 1 or more"
        )
    found = points(arguments)
    worker = arguments.flags.get("--worker", DEFAULT_WORKER)
    try:
        _drive(found, int(text), worker, fail_fast=arguments.has("--fail-fast"), console=console)
    except KeyboardInterrupt:
        console.print("stopping all runs of the sweep ...", highlight=False)
        _stop_all(found)
    if not console.is_terminal:
        console.print(table(found))
    if any(point.state == "FAILED" for point in found):
        return Exit.FAILED
    return Exit.DONE if all(point.state == "DONE" for point in found) else Exit.LEFT


def _drive(found: list[Point], limit: int, worker: str, *, fail_fast: bool, console: Console) -> None:
    with (
        Live(table(found), console=console, refresh_per_second=4, transient=False) if console.is_terminal else _Quiet() as live
    ):
        while any(point.state == "WAITING" or point.state in LIVE for point in found):
            for point in found:
                _refresh(point)
            if fail_fast and any(point.state == "FAILED" for point in found):
                _stop_all(found)
                return
            running = sum(point.state in LIVE for point in found)
            for point in [p for p in found if p.state == "WAITING"][: max(0, limit - running)]:
                _start(point, worker)
                if not console.is_terminal:
                    console.print(f"{point.state} {point.composed.spec.name}  {' '.join(point.varied)}", highlight=False)
            live.update(table(found))
            time.sleep(_POLL_S)
    for point in found:
        _refresh(point)


class _Quiet:
    """Stands for the live table where there is no terminal."""

    def __enter__(self) -> _Quiet:
        return self

    def __exit__(self, *_: object) -> None: ...

    def update(self, renderable: object) -> None: ...


def _start(point: Point, worker: str) -> None:
    composed = point.composed
    try:
        if point.rundir.attempts() and look(point.rundir).state in LIVE:
            point.state = "TRAINING"  # somebody runs it already: at most one live run of each point
            return
        started = session.start(composed.spec, words=composed.words, choices=composed.choices, worker=worker)
        point.state = "STARTING" if started.handle else "DONE"
        point.status = None if started.handle else look(point.rundir)
    except ZephonError as error:
        holder = read_lease(point.rundir)
        if holder is not None and alive(holder):
            return  # somebody has started it in this moment: the next look follows it
        point.state, point.error = "FAILED", error.what


def _refresh(point: Point) -> None:
    if point.state not in LIVE:
        return
    point.status = look(point.rundir)
    point.state, point.error = point.status.state, point.status.error


def _stop_all(found: list[Point]) -> None:
    for point in found:
        if point.state in LIVE:
            session.stop(point.rundir, wait_s=0)
    for point in found:
        if point.state in LIVE:
            point.status = session.stop(point.rundir)
            point.state = point.status.state
        elif point.state == "WAITING":
            point.state = "NOT STARTED"


def table(found: Sequence[Point]) -> Table:
    """One row per point: what varied, how it stands, its error."""
    made = Table(box=None, padding=(0, 2))
    for title in ("run", "varied", "state", "step", "loss", "error"):
        made.add_column(title)
    for point in found:
        status = point.status
        step = f"{status.step}/{status.steps}" if status else ""
        loss = f"{status.loss:.4f}" if status and status.loss is not None else ""
        made.add_row(point.composed.spec.name, " ".join(point.varied), point.state, step, loss, point.error)
    return made
