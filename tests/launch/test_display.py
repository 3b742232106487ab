"""The display of a run: one live line on a terminal, plain lines with a time elsewhere."""

from __future__ import annotations

import io
import re
import threading
import time

import pytest
from rich.console import Console

from tests.launch.written import Written
from zephon.launch.cli import display
from zephon.launch.cli.display import follow, live_parts, one_line
from zephon.launch.status import RunStatus, status_of

KNOWN = RunStatus(
    name="exp1",
    url="runs/exp1",
    app_id="a",
    state="TRAINING",
    attempt=1,
    step=30,
    steps=60,
    loss=2.5,
    tokens_per_s=1234.0,
    took_s=65.0,
    eta_s=59.0,
    pace_s=1.97,
    lr=1e-3,
    nodes=2,
    target=2,
    world_size=2,
    checkpoint=20,
    checkpoint_age_s=12.0,
    event="node ready",
    event_age_s=61.0,
    digest="ab" * 32,
)


def test_the_display_shows_all_that_is_known_on_a_terminal_and_in_a_file(written: Written) -> None:
    written.supervisor(state="DONE").progress(step=100)
    for terminal in (True, False):
        text = io.StringIO()
        console = Console(file=text, force_terminal=terminal, width=160)
        assert follow(written.rundir, console=console).state == "DONE"
        shown = text.getvalue()
        for part in ("DONE", "toy", "100/100", "loss 2.5000", "1,234 tokens/s", "digest abababababab", "world 2"):
            assert part in shown, (terminal, part)
        assert ("\x1b[" in shown) is terminal
        assert terminal or re.match(r"\d\d:\d\d:\d\d  DONE", shown)
    assert one_line(status_of(written.rundir)).startswith("DONE")


def test_a_wide_terminal_shows_times_rate_checkpoint_and_event_and_a_narrow_one_the_most_important() -> None:
    shown = " ".join(part.plain for part in live_parts(KNOWN, now=0.0))
    for part in (
        "step 30/60",
        "1:05",
        "0:59 left",
        "2 s/step",
        "lr 1.00e-03",
        "saved 20 12 s ago",
        "node ready 1 min 01 s ago",
    ):
        assert part in shown
    first = [part.plain for part in live_parts(KNOWN, now=0.0)][:6]
    assert first[:3] == ["TRAINING", "exp1", "step 30/60"]
    assert first[4:] == ["1:05", "0:59 left"]


def test_a_run_that_starts_shows_a_spinner_and_a_clock() -> None:
    starting = RunStatus(name="exp1", url="", app_id="a", state="STARTING", attempt=1, took_s=12.0, message="waits for nodes")
    frames = [live_parts(starting, now=now) for now in (0.0, 0.5)]
    assert [part.plain for part in frames[0]][1:] == ["exp1", "0:12", "waits for nodes"]
    assert frames[0][0].plain != frames[1][0].plain


def test_a_file_gets_a_line_at_most_every_ten_seconds_while_nothing_but_the_step_changes(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert display.PLAIN_EVERY_S == 10.0
    monkeypatch.setattr(display, "PLAIN_EVERY_S", 0.5)
    written.supervisor().progress(step=1)

    def train() -> None:
        for step in range(2, 12):
            time.sleep(0.1)
            written.progress(step=step)
        written.supervisor(state="DONE")

    trainer = threading.Thread(target=train)
    text = io.StringIO()
    trainer.start()
    follow(written.rundir, console=Console(file=text, width=200), every_s=0.01)
    trainer.join()
    lines = text.getvalue().splitlines()
    assert 3 <= len(lines) <= 5, lines
    assert all(re.match(r"\d\d:\d\d:\d\d  (TRAINING|DONE)  toy  step \d+/100", line) for line in lines)


def test_no_color_leaves_colour_out(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    written.supervisor(state="DONE").progress(step=100)
    text = io.StringIO()
    follow(written.rundir, console=Console(file=text, force_terminal=True, width=160))
    assert not re.search(r"\x1b\[[\d;]*3\dm", text.getvalue())
