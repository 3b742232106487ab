"""The verbs that only show what run directories hold, ``status`` and ``list``; they import neither Hydra nor TorchX."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from zephon.launch.cli.arguments import Arguments
from zephon.launch.cli.wording import duration, resize_text, shares_text, stages_text
from zephon.launch.status import LIVE, RunStatus, find_run, run_names, status_of
from zephon.run.directory import RunDir

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def run_of(arguments: Arguments) -> RunDir:
    """The run directory of the run that was named, or of the one started last."""
    return find_run(arguments.names[0] if arguments.names else None, arguments.runs)


def status(arguments: Arguments, console: Console) -> int:
    run = status_of(run_of(arguments))
    if arguments.json:
        print(json.dumps(dataclasses.asdict(run)))
    else:
        console.print(status_table(run))
    return 0


def first_line(text: str) -> str:
    """What is wrong, without what follows and what to do: those are in the logs."""
    return text.strip().partition("\n")[0].strip()


_WHO_FIRST = re.compile(r"(rank \d+ on \S+?)(?: ended first, with status (-?\d+)|: status (-?\d+)): (.+)")


def cause_first(text: str) -> str:
    """The first line of an error with the cause before the rank that had it: a narrow line is cut at its end."""
    line = first_line(text)
    match = _WHO_FIRST.fullmatch(line)
    return f"{match[4]} ({match[1]}, status {match[2] or match[3]})" if match else line


def whole(text: str) -> str:
    """An error with all of its lines, the cause first."""
    return "\n".join([cause_first(text), *text.strip().split("\n")[1:]])


def status_table(run: RunStatus) -> Table:
    """Everything that ``status`` knows, the last error first."""
    from rich.table import Table
    from rich.text import Text

    live = run.state in LIVE
    message = run.message if run.state not in ("TRAINING", "DONE") or run.early else ""
    notes = [note for note in run.notes if note not in run.message and note not in (run.error, *run.also)]
    left = f", {duration(run.eta_s)} left" if run.eta_s and live else ""
    rows = [
        ("run", f"{run.name}  ({run.url})"),
        ("state", run.state + (f": {message}" if message else "")),
        ("step", f"{run.step} of {run.steps}{left}"),
        ("loss", f"{run.loss:.4f}" if run.loss is not None else "–"),
        ("speed", f"{run.tokens_per_s:,.0f} tokens/s" if run.tokens_per_s is not None else "–"),
        ("size", f"{run.nodes} of {run.target} nodes, world {run.world_size}"),
        ("attempt", f"{run.attempt}, generation {run.generation}{_since(run)}"),
        *([("stages", stages_text(run.stages))] if run.stages else []),
        *([("shares", shares_text(run.realized, run.targets))] if len(run.targets) > 1 else []),
        ("counted", f"{run.failures} failures, {run.lost} lost nodes, {run.resizes} resizes"),
    ]
    shown = [cause for cause in (run.error, *run.also) if cause and cause not in message]
    rows[:0] = [("last error" if number == 0 else "also", whole(cause)) for number, cause in enumerate(shown)]
    rows[len(shown) + 2 : len(shown) + 2] = [("note", note) for note in notes]
    rows += [("dropped" if number == 0 else "", text) for number, text in enumerate(run.dropped)]
    if run.warning:
        rows.insert(0, ("warning", run.warning))
    if run.resize is not None:
        rows.append(("last resize", resize_text(run.resize)))
    if run.checkpoint is not None:
        rows.append(("checkpoint", f"step {run.checkpoint}, {duration(run.checkpoint_age_s)} old"))
    if run.progress_age_s is not None and live:
        rows.append(("last sign of life", f"{duration(run.progress_age_s)} ago"))
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(Text(name, style="bold"), Text(value))
    return table


def list_runs(arguments: Arguments, console: Console) -> int:
    from zephon.launch.backends.local.index import prune

    prune()
    statuses = [status_of(RunDir(f"{arguments.runs.rstrip('/')}/{name}")) for name in run_names(arguments.runs)]
    if arguments.json:
        print(json.dumps([dataclasses.asdict(run) for run in statuses]))
    elif not statuses:
        console.print(f"no runs in {arguments.runs}", highlight=False)
    else:
        for line in list_lines(statuses, time.time()):
            console.print(line, highlight=False)
    return 0


_TITLES = ("run", "state", "step", "loss", "nodes", "attempt", "started", "ran")


def list_lines(statuses: Sequence[RunStatus], now: float) -> list[str]:
    """A line per run, the newest first and never shortened; below a run what went wrong, as far as it has not ended well."""
    newest_first = sorted(statuses, key=lambda run: run.started or 0.0, reverse=True)
    rows = [_TITLES, *(_cells(run, now) for run in newest_first)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_TITLES))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    listed = lines[:1]
    for line, run in zip(lines[1:], newest_first, strict=True):
        listed.append(line)
        cause = cause_first(run.error or run.message)
        if cause and run.state != "DONE" and cause != run.state.lower():
            listed.append(f"    {cause}")
    return listed


def _cells(run: RunStatus, now: float) -> tuple[str, ...]:
    loss = f"{run.loss:.4f}" if run.loss is not None else "–"
    age = f"{duration(now - run.started)} ago" if run.started is not None else "–"
    step = f"{run.step}/{run.steps}"
    return run.name, run.state, step, loss, str(run.nodes), str(run.attempt), age, duration(run.took_s)


def _since(run: RunStatus) -> str:
    if run.started is None:
        return ""
    how = "runs" if run.live else "ran"
    return f", started {duration(time.time() - run.started)} ago, {how} for {duration(run.took_s)}"
