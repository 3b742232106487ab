"""``evaluation.json``: the newest checkpoint's loss on held-out data. The stage ``evaluate`` writes it."""

from __future__ import annotations

import dataclasses

from zephon.run.directory import RunDir
from zephon.run.plain import as_record

FILE = "evaluation.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldOutLoss:
    """``loss`` per token over ``tokens`` of held-out data, of the checkpoint of ``step``."""

    step: int
    loss: float
    tokens: int


def read_evaluation(rundir: RunDir) -> HeldOutLoss | None:
    """None before the stage is done."""
    return as_record(HeldOutLoss, rundir.find_json(FILE))


def write_evaluation(rundir: RunDir, evaluation: HeldOutLoss) -> None:
    rundir.write_json(FILE, data=dataclasses.asdict(evaluation))
