"""One line of a terminal that is written again and again, and stays one line when the terminal is resized.

    parts, the most important first    ->    as many as fit into the width that the terminal has now

A terminal that becomes narrower folds the line that stands there into several rows; the next line clears all of them. Colour
is rich's, which leaves it out for NO_COLOR.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

_GAP = "  "


class LiveLine:
    """``show`` replaces the line, ``say`` writes a line that stays above it, ``end`` leaves it where it is."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._length = 0  # characters that stand there now

    def show(self, parts: Sequence[Text]) -> None:
        width = self._console.width
        line = fitted(parts, width - 1)  # a full row would move the cursor to the next
        self._clear(width)
        self._console.print(line, end="", soft_wrap=True, highlight=False)
        self._length = line.cell_len
        self._console.file.flush()

    def say(self, text: str) -> None:
        self._clear(self._console.width)
        self._console.print(text, soft_wrap=True, highlight=False)

    def end(self) -> None:
        if self._length:
            self._console.print()
        self._length = 0

    def _clear(self, width: int) -> None:
        folded = max(0, self._length - 1) // max(width, 1)
        up = f"\x1b[{folded}A" if folded else ""
        self._console.file.write(f"{up}\r\x1b[J")
        self._length = 0


def fitted(parts: Sequence[Text], width: int) -> Text:
    """The parts that fit, in their order; one that does not fit is skipped, and the first is cut where it must be."""
    line = parts[0].copy()
    line.truncate(width, overflow="ellipsis")
    for part in parts[1:]:
        if part.cell_len and line.cell_len + len(_GAP) + part.cell_len <= width:
            line.append(_GAP).append_text(part)
    return line
