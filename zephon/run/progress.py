"""``attempts/NNNN/progress.json``: an attempt's newest step. Rank 0 replaces it; status and coordinator read it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from zephon.run.directory import RunDir
from zephon.run.metrics import DroppedSoFar
from zephon.run.plain import as_record

_FILE = "progress.json"
DRAIN_MARGIN = 1.5  # times a step and its save: the limit for a drain should be above


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """The newest step.

    Args:
        step, steps: optimizer steps done and wanted.
        time: when this step was done, in unix seconds.
        generation, world_size: the membership that made it.
        began: steps done when this generation began; None where it is not known.
        recorded: steps that the ledger had then.
        step_s: seconds that this step took.
        pace_s: seconds per step, as the mean of the newest steps.
        save_s: seconds that the newest save took; None before the first.
        loss, tokens_per_s, lr, digest: of this step.
        realized, targets: each dataset's part of the newest steps' tokens, and what it should be.
        tokens: trained by the run so far.
        dropped: documents and tokens that the run has dropped so far, by reason.
    """

    step: int
    steps: int
    time: float
    generation: int = 0
    world_size: int = 0
    began: int | None = None
    recorded: int = 0
    step_s: float | None = None
    pace_s: float | None = None
    save_s: float | None = None
    loss: float | None = None
    tokens_per_s: float | None = None
    lr: float | None = None
    digest: str = ""
    realized: dict[str, float] = dataclasses.field(default_factory=dict)
    targets: dict[str, float] = dataclasses.field(default_factory=dict)
    tokens: int = 0
    dropped: Mapping[str, DroppedSoFar] = dataclasses.field(default_factory=dict)

    @property
    def left_s(self) -> float | None:
        """Seconds until the last step at the present pace."""
        return None if self.pace_s is None else (self.steps - self.step) * self.pace_s


def drain_warning(*, save_s: float | None, step_s: float | None, drain_s: float) -> str:
    """Why a drain may not end within ``elastic.drain_s``, by the newest save and step; empty where it will, or is not known."""
    needed = (save_s or 0.0) + (step_s or 0.0)
    if save_s is None or needed * DRAIN_MARGIN <= drain_s:
        return ""
    return (
        f"a drain may lose steps: a step and its save take {needed:.1f} s and elastic.drain_s={drain_s:g}; "
        f"set at least {math.ceil(needed * DRAIN_MARGIN)}"
    )


def read_progress(rundir: RunDir, attempt: int) -> Progress | None:
    """None before the attempt's first step."""
    return as_record(Progress, rundir.find_json(*RunDir.in_attempt(attempt, _FILE)))


def write_progress(rundir: RunDir, attempt: int, progress: Progress) -> None:
    rundir.write_json(*RunDir.in_attempt(attempt, _FILE), data=dataclasses.asdict(progress))
