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

from rich.console import Console
from rich.live import Live
from rich.table import Table

from zephon.errors import ConfigError, ZephonError
from zephon.exits import Exit
from zephon.launch import control
from zephon.launch import start as launcher
from zephon.launch.cli.arguments import Arguments
from zephon.launch.cli.grammar import DEFAULT_LIMIT
from zephon.launch.config.compose import Composed, compose
from zephon.launch.config.overrides import alternatives
from zephon.launch.status import LIVE, RunStatus, status_of
from zephon.run.directory import RunDir
from zephon.run.lease import read_lease

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


def expand(overrides: Sequence[str]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """All combinations of the alternatives: (all overrides, the varied ones), the last override varying fastest."""
    choices = [alternatives(override) for override in overrides]
    varied = [index for index, options in enumerate(choices) if len(options) > 1]
    return [(combination, tuple(combination[i] for i in varied)) for combination in itertools.product(*choices)]


def points(arguments: Arguments) -> list[Point]:
    """Every point, composed and named.

    Raises:
        ConfigError: any of them cannot work, or two would be the same run.
    """
    by_name: dict[str, Point] = {}
    for overrides, varied in expand(arguments.overrides):
        composed = compose(overrides, config_dir=arguments.config_dir, explain=True)
        spec = composed.spec
        defining = {key: value for key, value in json.loads(spec.canonical_json()).items() if key not in ("name", "runs")}
        digest = hashlib.sha256(json.dumps(defining, sort_keys=True).encode()).hexdigest()[:8]
        spec = dataclasses.replace(spec, name=f"{spec.name[:54]}-{digest}")
        if spec.name in by_name:
            raise ConfigError(
                f"{' '.join(varied)} and {' '.join(by_name[spec.name].varied)} are the same experiment",
                follows="one of them would be trained twice",
                remedy="remove the repeated alternative",
            )
        by_name[spec.name] = Point(dataclasses.replace(composed, spec=spec), varied, launcher.rundir_of(spec))
    return list(by_name.values())


def sweep(arguments: Arguments, console: Console) -> int:
    """Runs all points; 0 when every one is done, 1 when any failed, 143 when stopped."""
    swept = points(arguments)
    worker = arguments.worker
    try:
        _drive(swept, arguments.limit or DEFAULT_LIMIT, worker, fail_fast=arguments.fail_fast, console=console)
    except KeyboardInterrupt:
        console.print("stopping all runs of the sweep ...", highlight=False)
        _stop_all(swept)
    if not console.is_terminal:
        console.print(table(swept))
    if any(point.state == "FAILED" for point in swept):
        return Exit.FAILED
    return Exit.DONE if all(point.state == "DONE" for point in swept) else Exit.LEFT


def _drive(swept: list[Point], limit: int, worker: str | None, *, fail_fast: bool, console: Console) -> None:
    with (
        Live(table(swept), console=console, refresh_per_second=4, transient=False) if console.is_terminal else _Quiet() as live
    ):
        while any(point.state == "WAITING" or point.state in LIVE for point in swept):
            for point in swept:
                _refresh(point)
            if fail_fast and any(point.state == "FAILED" for point in swept):
                _stop_all(swept)
                return
            running = sum(point.state in LIVE for point in swept)
            for point in [p for p in swept if p.state == "WAITING"][: max(0, limit - running)]:
                _start(point, worker)
                if not console.is_terminal:
                    console.print(f"{point.state} {point.composed.spec.name}  {' '.join(point.varied)}", highlight=False)
            live.update(table(swept))
            time.sleep(_POLL_S)
    for point in swept:
        _refresh(point)


class _Quiet:
    """What takes the place of the live table where there is no terminal."""

    def __enter__(self) -> _Quiet:
        return self

    def __exit__(self, *_: object) -> None: ...

    def update(self, renderable: object) -> None: ...


def _start(point: Point, worker: str | None) -> None:
    composed = point.composed
    try:
        if point.rundir.attempts() and status_of(point.rundir).state in LIVE:
            point.state = "TRAINING"  # it runs already: a point has at most one live run
            return
        started = launcher.start(
            composed.spec,
            overrides=composed.overrides,
            choices=composed.choices,
            sources=composed.sources,
            worker=worker,
        )
        point.state = "STARTING" if started.handle else "DONE"
        point.status = None if started.handle else status_of(point.rundir)
    except ZephonError as error:
        holder = read_lease(point.rundir)
        if holder is not None and holder.binds:
            return  # another process has started it in this moment: the next poll follows it
        point.state, point.error = "FAILED", error.what


def _refresh(point: Point) -> None:
    if point.state not in LIVE:
        return
    point.status = status_of(point.rundir)
    point.state, point.error = point.status.state, point.status.error


def _stop_all(swept: list[Point]) -> None:
    for point in swept:
        if point.state in LIVE:
            control.stop(point.rundir, wait_s=0)
    for point in swept:
        if point.state in LIVE:
            point.status = control.stop(point.rundir)
            point.state = point.status.state
        elif point.state == "WAITING":
            point.state = "NOT STARTED"


def table(swept: Sequence[Point]) -> Table:
    """One row per point: what varied, its state, its error."""
    rows = Table(box=None, padding=(0, 2))
    for title in ("run", "varied", "state", "step", "loss", "error"):
        rows.add_column(title)
    for point in swept:
        status = point.status
        step = f"{status.step}/{status.steps}" if status else ""
        loss = f"{status.loss:.4f}" if status and status.loss is not None else ""
        rows.add_row(point.composed.spec.name, " ".join(point.varied), point.state, step, loss, point.error)
    return rows
