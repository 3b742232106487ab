"""What happened to a run, as marks on its curves: resizes, restarts, failures, steps that were skipped."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from zephon.report.curves import Curves
from zephon.run.events import Event
from zephon.run.state import Resized

MOST = 400  # marks of one kind; the table of events has all

Kind = Literal["resize", "restart", "failure", "skipped step"]


@dataclasses.dataclass(frozen=True)
class Mark:
    """Something that happened after ``step`` optimizer steps."""

    step: int
    kind: Kind
    text: str


def marks(curves: Curves, events: Sequence[Event]) -> list[Mark]:
    """The marks of a run, by kind and step; of one kind at most ``MOST``, and then the last one says how many there are."""
    everything = [*_memberships(curves, events), *_failures(curves, events), *_skipped(curves)]
    kept: list[Mark] = []
    for kind in ("resize", "restart", "failure", "skipped step"):
        same = sorted((mark for mark in everything if mark.kind == kind), key=lambda mark: mark.step)
        if len(same) > MOST:
            note = f"; {len(same) - MOST:,} later marks of this kind are only in the table of events"
            same = [*same[: MOST - 1], dataclasses.replace(same[MOST - 1], text=same[MOST - 1].text + note)]
        kept += same
    return kept


def step_at(curves: Curves, time: float) -> int:
    """How many steps were done at a time, in unix seconds."""
    written = curves.column("time")
    known = np.isfinite(written)
    done = int(np.searchsorted(written[known], time, side="right"))
    return int(curves.step[known][done - 1]) if done else 0


def _memberships(curves: Curves, events: Sequence[Event]) -> Iterable[Mark]:
    """Where another membership goes on: a resize within an attempt, or the start of another one."""
    resizes = {resized.generation: resized for event in events if (resized := _resized(event)) is not None}
    attempts, sizes = (np.nan_to_num(curves.column(name)).astype(int) for name in ("attempt", "world_size"))
    for first, _, generation in curves.stretches("generation")[1:]:
        before, size = int(sizes[first - 1]), int(sizes[first])
        ranks = f"{size} ranks" if before == size else f"{before} → {size} ranks"
        step = int(curves.step[first - 1])
        if attempts[first] != attempts[first - 1]:
            yield Mark(step, "restart", f"attempt {attempts[first]} goes on from step {step} with {ranks}")
        elif (resized := resizes.get(generation)) is not None:
            yield Mark(step, "resize", f"{ranks}: {resized.sentence}")
        else:
            yield Mark(step, "restart", f"generation {generation} goes on from step {step} with {ranks}")


def _resized(event: Event) -> Resized | None:
    try:
        return Resized.from_json(event.details) if event.kind == "resized" else None
    except KeyError:  # of another version
        return None


def _failures(curves: Curves, events: Sequence[Event]) -> Iterable[Mark]:
    for event in events:
        if event.kind == "workers_exited" and (error := event.details.get("error")):
            what = f"rank {error.get('rank')} on {error.get('node')} ended with status {error.get('status')}"
            yield Mark(step_at(curves, event.time), "failure", f"{what}: {str(error.get('message'))[:200]}")
        elif event.kind in ("node_ended", "node_refused", "node_frozen"):
            cause = event.details.get("cause") or event.details.get("node") or ""
            yield Mark(step_at(curves, event.time), "failure", f"{event.kind.replace('_', ' ')}: {str(cause)[:200]}")


def _skipped(curves: Curves) -> Iterable[Mark]:
    for step, why in sorted(curves.skipped.items()):
        yield Mark(step, "skipped step", f"step {step - 1}: {why}")
