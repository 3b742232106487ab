"""The display of a run: one live line on a terminal, plain lines in a file."""

from __future__ import annotations

import io

from rich.console import Console

from tests.launch.written import Written
from zephon.launch.cli.display import follow, one_line, panel
from zephon.launch.status import status_of


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
