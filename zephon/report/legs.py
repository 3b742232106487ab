"""The legs of a run: stretches of steps trained at one world size, read from its ledger, beside a reference run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rich.table import Table

from zephon.run.ledger import Entry, read_ledger


@dataclasses.dataclass(frozen=True)
class Row:
    """One step of a run.

    Args:
        step: optimizer step, from 0.
        digest: of the global batch.
        world_size: ranks that trained it.
        loss: mean over the global batch.
        reference: the same step of the reference run, or None when it has none.
    """

    step: int
    digest: str
    world_size: int
    loss: float
    reference: Entry | None

    @property
    def same(self) -> bool:
        return self.reference is not None and self.reference.digest == self.digest


def rows(ledger: str, reference: str) -> list[Row]:
    """Every step of a ledger (the last time it was trained) beside the reference's."""
    expected = {entry.step: entry for entry in read_ledger(reference)}
    last = {entry.step: entry for entry in read_ledger(ledger)}
    return [
        Row(step, entry.digest, int(entry.rest["world_size"]), float(entry.rest["loss"]), expected.get(step))
        for step, entry in sorted(last.items())
    ]


def table(steps: Sequence[Row], *, around: int = 2) -> Table:
    """Step, digest, world size and loss; of each leg the first and last ``around`` steps."""
    shown = Table(title="Every step of the rescaled run beside the uninterrupted one", title_justify="left")
    for heading, justify in (("step", "right"), ("world size", "right"), ("digest", "left"), ("loss", "right")):
        shown.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for heading, justify in (("reference digest", "left"), ("loss", "right"), ("same batch", "left")):
        shown.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for leg in legs(steps):
        for i, row in enumerate(leg):
            if i == around and len(leg) > 2 * around:
                same = sum(r.same for r in leg[around:-around])
                between = len(leg) - 2 * around
                shown.add_row("...", "", "", "", "", "", f"{same} of {between} more")
            if i < around or i >= len(leg) - around:
                shown.add_row(*_cells(row))
        shown.add_section()
    return shown


def legs(steps: Sequence[Row]) -> list[list[Row]]:
    """Consecutive steps of one world size."""
    split: list[list[Row]] = []
    for row in steps:
        if not split or split[-1][-1].world_size != row.world_size:
            split.append([])
        split[-1].append(row)
    return split


def sentence(steps: Sequence[Row]) -> tuple[bool, str]:
    """Whether all legs agree with the reference, and the sentence that says so."""
    sizes = " -> ".join(str(leg[0].world_size) for leg in legs(steps))
    differing = [row.step for row in steps if not row.same]
    if not steps:
        return False, "No step was trained: there is nothing to compare."
    if differing:
        return (
            False,
            f"NO: at world sizes {sizes}, step {differing[0]} is the first of {len(differing)} whose global batch differs.",
        )
    apart = max(abs(row.loss - row.reference.rest["loss"]) for row in steps if row.reference is not None)
    return True, (
        f"YES: at world sizes {sizes}, every one of {len(steps)} steps had the same global batch as the uninterrupted run; "
        f"losses differ by {apart:.1e} at most."
    )


def _cells(row: Row) -> list[str]:
    expected = row.reference
    return [
        str(row.step),
        str(row.world_size),
        row.digest[:8],
        f"{row.loss:.4f}",
        expected.digest[:8] if expected else "",
        f"{float(expected.rest['loss']):.4f}" if expected else "",
        "yes" if row.same else "NO",
    ]
