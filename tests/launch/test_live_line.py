"""The live line: what fits into the width that the terminal has now, on one row, also after a resize."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from zephon.launch.cli.live_line import LiveLine, fitted

PARTS = [Text(part) for part in ("TRAINING", "a-run", "step 10/100", "x" * 30, "lr 1e-3")]


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (80, "TRAINING  a-run  step 10/100  " + "x" * 30 + "  lr 1e-3"),
        (40, "TRAINING  a-run  step 10/100  lr 1e-3"),
        (16, "TRAINING  a-run"),
        (5, "TRAI…"),
    ],
)
def test_what_fits_is_shown_the_most_important_first(width: int, line: str) -> None:
    assert fitted(PARTS, width).plain == line


class Screen:
    """A terminal of some width that folds what stands on it when it becomes narrower, as terminals do."""

    def __init__(self, width: int) -> None:
        self.rows, self.width = [""], width

    def resize(self, width: int) -> None:
        self.width = width
        self.rows = [row[i : i + width] for row in self.rows for i in range(0, max(len(row), 1), width)]

    def feed(self, text: str) -> None:
        import re

        for up, character in re.findall(r"\x1b\[(\d*)[A-Za-z]|(.|\n)", text.replace("\x1b[J", "\0")):
            if up:
                self.row = len(self.rows) - 1 - int(up)
                del self.rows[self.row + 1 :]
            elif character == "\n":
                self.rows.append("")
            elif character in "\r\0":
                self.rows[-1] = ""
            elif character:
                self.rows[-1] += character


def test_a_line_that_a_narrower_terminal_has_folded_is_cleared_as_a_whole() -> None:
    text, screen = io.StringIO(), Screen(80)
    console = Console(file=text, force_terminal=True, width=80, color_system=None)
    line = LiveLine(console)
    for width in (80, 30, 30, 12, 100):
        screen.resize(width)
        console.width = width
        text.seek(0)
        text.truncate()
        line.show(PARTS)
        screen.feed(text.getvalue())
        assert screen.rows == [fitted(PARTS, width - 1).plain], width
    text.seek(0)
    text.truncate()
    line.say("a node joined")
    line.show(PARTS)
    line.end()
    screen.feed(text.getvalue())
    assert screen.rows == ["a node joined", fitted(PARTS, 99).plain, ""]
