"""Where the time of a resize goes: from the last step at the old size to the first one at the new.

    order ──drain──► last old step ──save──► last worker gone ──membership──► formed ──restore──► ──first step──►
                     └────────────────────────────── stall ──────────────────────────────────────────────────┘

Times are taken from what others write anyway: the coordinator's own decisions, the workers' exits, and ``progress.json``.
One ``resized`` event per change, with the steps that had to be trained again (0 after a drain): the steps that the old
generation reported or, if more, recorded in the ledger, less those with which the new generation began.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from zephon.run.progress import Progress


@dataclasses.dataclass
class Resize:
    """A change of membership under way; times are unix seconds."""

    reason: str
    ordered: float
    nodes_before: int
    step_before: int
    stepped: float
    stopped: float
    formed: float = 0.0
    generation: int = 0
    nodes: int = 0


class Resizes:
    """Call ``ordered``, ``stopped``, ``formed`` as these happen, and ``progress`` often; it returns the finished event."""

    def __init__(self) -> None:
        self._under_way: Resize | None = None

    def ordered(self, reason: str, now: float, *, nodes: int) -> None:
        if self._under_way is None:
            self._under_way = Resize(reason, now, nodes, step_before=0, stepped=0.0, stopped=now)

    def stopped(self, now: float) -> None:
        """A worker of the old generation has ended."""
        if self._under_way is not None and not self._under_way.formed:
            self._under_way.stopped = max(self._under_way.stopped, now)

    def formed(self, generation: int, now: float, *, nodes: int, progress: Progress | None) -> None:
        """The new generation is decided; ``progress`` is the old one's newest."""
        change = self._under_way
        if change is None:
            return
        if not progress:
            self._under_way = None  # there was no step yet: a start and not a resize
            return
        change.formed, change.generation, change.nodes = now, generation, nodes
        change.step_before, change.stepped = progress.step, progress.time

    def waited(self, now: float) -> float:
        """Seconds since the workers of a change that is under way have ended; 0 when there is none."""
        return now - self._under_way.stopped if self._under_way is not None else 0.0

    @property
    def settling(self) -> bool:
        """Whether a new generation has been formed and has not made its first step."""
        return self._under_way is not None and self._under_way.formed > 0

    def progress(self, progress: Progress | None) -> dict[str, Any] | None:
        """The ``resized`` event, once the new generation's first step is there."""
        change = self._under_way
        if change is None or not change.formed or not progress or progress.generation != change.generation:
            return None
        self._under_way = None
        first = progress.step_s or 0.0
        done = progress.time
        began = progress.step - 1 if progress.began is None else progress.began
        before = max(change.step_before, progress.recorded)
        parts = {
            "drain": change.stepped - change.ordered,
            "save": change.stopped - max(change.stepped, change.ordered),
            "membership": change.formed - change.stopped,
            "restore": done - first - change.formed,
            "first_step": first,
        }
        return {
            "reason": change.reason,
            "generation": change.generation,
            "nodes_before": change.nodes_before,
            "nodes": change.nodes,
            "step_before": before,
            "step_after": progress.step,
            "lost_steps": max(0, before - began),
            "stall_s": round(done - change.stepped, 3),
            "parts_s": {name: round(max(0.0, seconds), 3) for name, seconds in parts.items()},
        }
