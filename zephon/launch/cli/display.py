"""The display of a run: one live line on a terminal, plain lines with a time elsewhere. Nothing here decides anything."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from zephon.launch.cli.live_line import LiveLine
from zephon.launch.cli.wording import clock, duration, resize_text, stage_lines
from zephon.launch.status import LIVE, RunStatus, status_of
from zephon.run.directory import RunDir
from zephon.run.events import EventReader

PLAIN_EVERY_S = 10.0
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_WAITING = ("UNSUBMITTED", "QUEUED", "STARTING")
_STYLES = {"TRAINING": "green", "DONE": "green", "FAILED": "red", "STALLED": "red", "DEGRADED": "yellow"}
_BAR = 20


def follow(rundir: RunDir, *, console: Console | None = None, every_s: float = 0.2) -> RunStatus:
    """Shows a run until it ends and returns how it ended."""
    console = console or Console(file=sys.stdout, markup=False)
    if console.is_terminal:
        return _live(rundir, console, every_s)
    return _plain(rundir, console, every_s)


def _live(rundir: RunDir, console: Console, every_s: float) -> RunStatus:
    line, events, news = LiveLine(console), EventReader(rundir), News()
    try:
        while True:
            status = status_of(rundir, events=events)
            for text in news.since_last(status):
                line.say(text)
            line.show(live_parts(status, now=time.time()))
            if status.state not in LIVE:
                return status
            time.sleep(every_s)
    finally:
        line.end()


def _plain(rundir: RunDir, console: Console, every_s: float) -> RunStatus:
    state, printed, events, news = "", float("-inf"), EventReader(rundir), News()
    while True:
        status = status_of(rundir, events=events)
        ended = status.state not in LIVE
        lines = news.since_last(status)
        if ended or status.state != state or time.monotonic() - printed >= PLAIN_EVERY_S:
            lines.append(one_line(status))
            state, printed = status.state, time.monotonic()
        for line in lines:
            console.print(f"{time.strftime('%H:%M:%S')}  {line}", highlight=False, soft_wrap=True)
        if ended:
            return status
        time.sleep(every_s)


class News:
    """What has happened since the last look and is told once: stages and changes of size."""

    def __init__(self) -> None:
        self._stages: dict[str, str] = {}
        self._generation: int | None = None

    def since_last(self, status: RunStatus) -> list[str]:
        lines = stage_lines(self._stages, status.stages)
        self._stages = status.stages
        generation = status.resize.generation if status.resize is not None else -1
        if status.resize is not None and self._generation not in (None, generation):
            lines.append(resize_text(status.resize))
        self._generation = generation
        return lines


def one_line(status: RunStatus) -> str:
    """All that is known, in one line without colour."""
    return "  ".join(part for part in [status.state, status.name, *_numbers(status), _message(status)] if part)


def live_parts(status: RunStatus, *, now: float) -> Sequence[Text]:
    """The same for a terminal, the most important first; what does not fit is skipped from behind."""
    state = Text(status.state, style=f"bold {_STYLES.get(status.state, 'cyan')}")
    if status.state in _WAITING:
        spinner = Text(_SPINNER[int(now * 8) % len(_SPINNER)] + " ")
        return [spinner + state, Text(status.name, style="bold"), Text(clock(status.took_s)), Text(_message(status))]
    numbers = [Text(text) for text in _numbers(status)]
    return [state, Text(status.name, style="bold"), *numbers[:1], _bar(status), *numbers[1:], Text(_message(status))]


def _numbers(status: RunStatus) -> list[str]:
    """Step, times, loss and the rest, the most important first."""
    known = [f"step {status.step}/{status.steps}"]
    if status.took_s is not None:
        known.append(clock(status.took_s))
    if status.eta_s is not None and status.state in LIVE:
        known.append(f"{clock(status.eta_s)} left")
    if status.loss is not None:
        known.append(f"loss {status.loss:.4f}")
    if status.pace_s is not None:
        known.append(f"{status.pace_s:.2g} s/step")
    if status.tokens_per_s is not None:
        known.append(f"{status.tokens_per_s:,.0f} tokens/s")
    if status.lr is not None:
        known.append(f"lr {status.lr:.2e}")
    if status.world_size:
        known.append(f"{status.nodes}/{status.target} nodes, world {status.world_size}")
    if status.checkpoint is not None:
        known.append(f"saved {status.checkpoint} {duration(status.checkpoint_age_s)} ago")
    if status.event:
        known.append(f"{status.event} {duration(status.event_age_s)} ago")
    if status.digest:
        known.append(f"digest {status.digest[:12]}")
    return known


def _bar(status: RunStatus) -> Text:
    filled = round(_BAR * status.step / status.steps) if status.steps else 0
    return Text("━" * filled, style="green") + Text("─" * (_BAR - filled), style="dim")


def _message(status: RunStatus) -> str:
    """The message where it says why nothing trains, or why a run is done before its last step."""
    shows = status.early or status.state not in ("TRAINING", "DEGRADED", "STALLED", "DONE", "STOPPED")
    return status.message.partition("\n")[0] if shows else ""
