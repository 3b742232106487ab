"""The display of a run: one live line on a terminal, plain lines elsewhere. Nothing here decides anything."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from zephon.launch.cli.wording import duration, stage_lines, stages_text
from zephon.launch.status import LIVE, RunStatus, status_of
from zephon.run.directory import RunDir
from zephon.run.events import EventReader

_PLAIN_EVERY_S = 2.0


def follow(rundir: RunDir, *, console: Console | None = None, every_s: float = 0.2) -> RunStatus:
    """Shows a run until it ends and returns how it ended."""
    console = console or Console(file=sys.stdout, markup=False)
    if console.is_terminal:
        return _live(rundir, console, every_s)
    return _plain(rundir, console, every_s)


def _live(rundir: RunDir, console: Console, every_s: float) -> RunStatus:
    events = EventReader(rundir)
    status = status_of(rundir, events=events)
    with Live(panel(status), console=console, refresh_per_second=8, transient=False) as live:
        while status.state in LIVE:
            time.sleep(every_s)
            status = status_of(rundir, events=events)
            live.update(panel(status))
    return status


def _plain(rundir: RunDir, console: Console, every_s: float) -> RunStatus:
    shown, printed, stages = "", 0.0, dict[str, str]()
    events = EventReader(rundir)
    while True:
        status = status_of(rundir, events=events)
        for line in stage_lines(stages, status.stages):
            console.print(line, highlight=False, soft_wrap=True)
        stages = status.stages
        ended = status.state not in LIVE
        due = time.monotonic() - printed >= _PLAIN_EVERY_S or status.state != shown.split(" ")[0]
        line = one_line(status)
        if (due or ended) and line != shown:
            console.print(line, highlight=False, soft_wrap=True)
            shown, printed = line, time.monotonic()
        if ended:
            return status
        time.sleep(every_s)


def one_line(status: RunStatus) -> str:
    """State, step, loss, speed, digest and size in one line."""
    parts = [status.state, f"{status.name}", f"step {status.step}/{status.steps}"]
    if status.loss is not None:
        parts.append(f"loss {status.loss:.4f}")
    if status.tokens_per_s is not None:
        parts.append(f"{status.tokens_per_s:,.0f} tokens/s")
    if status.digest:
        parts.append(f"digest {status.digest[:12]}")
    if status.world_size:
        parts.append(f"world {status.world_size}")
    if status.message and _shows_message(status):
        parts.append(status.message.partition("\n")[0])
    return "  ".join(parts)


def _shows_message(status: RunStatus) -> bool:
    """Whether one line has room for the message: it says why nothing trains, or why a run is done before its last step."""
    return status.early or status.state not in ("TRAINING", "DEGRADED", "STALLED", "DONE", "STOPPED")


def panel(status: RunStatus) -> Table:
    """The live display: a bar and the numbers."""
    table = Table.grid(padding=(0, 2))
    width = 32
    filled = round(width * status.step / status.steps) if status.steps else 0
    bar = Text("━" * filled, style="green") + Text("━" * (width - filled), style="grey37")
    colour = {"TRAINING": "green", "DONE": "green", "FAILED": "red", "STALLED": "red", "DEGRADED": "yellow"}.get(
        status.state, "cyan"
    )
    table.add_row(
        Text(status.state, style=f"bold {colour}"), Text(status.name, style="bold"), bar, f"{status.step}/{status.steps}"
    )
    numbers = [
        f"loss {status.loss:.4f}" if status.loss is not None else "loss –",
        f"{status.tokens_per_s:,.0f} tokens/s" if status.tokens_per_s is not None else "– tokens/s",
        f"digest {status.digest[:12] or '–'}",
        f"{status.nodes}/{status.target} nodes, world {status.world_size}"
        + (f", {duration(status.eta_s)} left" if status.eta_s else ""),
    ]
    table.add_row(*numbers)
    if status.message and (status.state not in ("TRAINING", "DONE") or status.early):
        table.add_row("", status.message)
    if status.stages:
        table.add_row("", stages_text(status.stages))
    return table
