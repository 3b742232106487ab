"""The part of ``plan`` about data: a table of the datasets, and the mixture over the run as a picture of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

from zephon.launch.data_plan import DataPlan

WIDTH, HEIGHT = 64, 10


def data_table(plan: DataPlan) -> Table:
    """One row a dataset."""
    table = Table(box=None, padding=(0, 2))
    for title in ("dataset", "units", "tokens, about", "share", "passes", "chunks", "a lane"):
        table.add_column(title, justify="left" if title == "dataset" else "right")
    for row in plan.datasets:
        tokens = f"{row.tokens:,}" + (f" ±{row.error:.1%}" if row.error else "")
        share = f"{row.share:.1%}" + (f" ±{row.within * row.share:.2%}" if row.within else "")
        passes, a_lane = f"{row.passes:.2f}", f"{row.chunks_a_lane:,.1f}"
        table.add_row(row.name, f"{row.size:,}", tokens, share, passes, f"{row.chunks:,}", a_lane)
    return table


def picture(plan: DataPlan, shares: Sequence[Mapping[str, float]], *, height: int = HEIGHT) -> Iterator[str]:
    """The mixture over the run: a column for each part of it, filled from below in the order of the datasets.

    Args:
        plan: whose phases are marked.
        shares: of each dataset in each column.
    """
    letters = _letters([row.name for row in plan.datasets])
    columns = [_column(column, letters, height) for column in shares]
    for row in range(height):
        share = (height - row) * 100 // height
        yield f"{share:>4}% " + "".join(column[height - 1 - row] for column in columns)
    marks = [" "] * len(columns)
    axis = ["-"] * len(columns)
    for step in [0, *(phase.begin for phase in plan.phases[1:])]:
        place = step * len(columns) // max(1, plan.steps)
        if place < len(columns):
            axis[place] = "+"
            label = f"{step:,}"
            free = all(mark == " " for mark in marks[max(0, place - 1) : place + len(label)])
            if free and place + len(label) <= len(columns):
                marks[place : place + len(label)] = label
    yield "      " + "".join(axis)
    yield "      " + "".join(marks).rstrip() + f"   of {plan.steps:,} steps"
    yield "      " + "   ".join(f"{letter} {name}" for name, letter in letters.items())


def _letters(names: Sequence[str]) -> dict[str, str]:
    """A letter for each dataset: the first of its name that no other has."""
    letters: dict[str, str] = {}
    for name in names:
        marks = [*name, *"abcdefghijklmnopqrstuvwxyz0123456789"]
        letters[name] = next((mark for mark in marks if mark.isalnum() and mark not in letters.values()), "?")
    return letters


def _column(shares: Mapping[str, float], letters: Mapping[str, str], height: int) -> str:
    """From below; a dataset with any share at all of half a row or more is seen."""
    marks, reached = "", 0.0
    for name, letter in letters.items():
        reached += shares.get(name, 0.0) * height
        marks += letter * (round(reached) - len(marks))
    return marks.ljust(height)[:height]
