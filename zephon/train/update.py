"""What one optimizer step gave."""

from __future__ import annotations

from dataclasses import dataclass, field

from zephon.train.loss import DatasetLoss


@dataclass(frozen=True, kw_only=True)
class Update:
    """What one optimizer step gave.

    Args:
        skipped: why the weights did not change, or None.
        datasets: what each dataset's trained tokens cost, where there are some.
        bad: whether the reason is the loss or the gradient, so that ``trainer.nonfinite`` decides how to go on.
    """

    loss: float
    norm: float
    rate: float
    datasets: dict[str, DatasetLoss] = field(default_factory=dict)
    skipped: str | None = None
    bad: bool = False
