"""The display of a run: one live line on a terminal, plain lines in a file."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.launch.written import Written
from zephon.launch.cli.display import duration, follow, one_line, panel, resize_text
from zephon.launch.status import status_of
from zephon.run.state import Resized

RESIZED = Resized(
    reason="a node joined",
    generation=2,
    nodes_before=1,
    nodes=2,
    step_before=9,
    step_after=10,
    lost_steps=0,
    stall_s=0.9,
    parts_s={"drain": 0.1, "save": 0.2, "membership": 0.0, "restore": 0.5, "first_step": 0.1},
)


def test_the_display_shows_step_loss_speed_digest_and_size_on_a_terminal_and_in_a_file(written: Written) -> None:
    written.supervisor(state="DONE").progress(step=100)
    for terminal in (True, False):
        text = io.StringIO()
        console = Console(file=text, force_terminal=terminal, width=140)
        assert follow(written.rundir, console=console).state == "DONE"
        shown = text.getvalue()
        for part in ("DONE", "toy", "100/100", "loss 2.5000", "1,234 tokens/s", "digest abababababab", "world 2"):
            assert part in shown, (terminal, part)
        assert ("\x1b[" in shown) is terminal
    status = status_of(written.rundir)
    assert panel(status).row_count == 2
    assert one_line(status).startswith("DONE")


def test_a_resize_is_told_in_the_order_in_which_it_happens() -> None:
    assert resize_text(RESIZED) == (
        "1 -> 2 nodes (a node joined): stalled 0.90 s "
        "(drain 0.10, save 0.20, membership 0.00, restore 0.50, first step 0.10), 0 steps lost"
    )


@pytest.mark.parametrize(("seconds", "text"), [(None, "–"), (0.4, "0 s"), (65, "1 min 05 s"), (7800, "2 h 10 min")])
def test_durations_read_like_speech(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
