"""The learning rate as a function of the global step alone, never of ranks, microbatches or restarts.

    rate
    1.0        ________________           wsd: flat, then a straight decay over the last decay_steps
              /                \\
    0.1      /                  \\____     cosine, linear: one decay from the end of warm-up to decay_steps
             warm-up            decay

Steps count from 0, so with ``warmup_steps=10`` the fifth step (index 4) runs at half the peak.
"""

from __future__ import annotations

import math

from zephon.spec import OptimizerSpec


def learning_rate(spec: OptimizerSpec, *, step: int, steps: int) -> float:
    """The rate of step ``step`` (from 0) of a run of ``steps``.

    ``decay_steps`` defaults to the run's length for cosine and linear (where the decay ends), and to a tenth of it for
    wsd (how long it takes).
    """
    return spec.lr * _factor(spec, step=step, steps=steps)


def _factor(spec: OptimizerSpec, *, step: int, steps: int) -> float:
    if step < spec.warmup_steps:
        return (step + 1) / spec.warmup_steps
    if spec.schedule == "constant":
        return 1.0
    if spec.schedule == "wsd":
        length = spec.decay_steps if spec.decay_steps is not None else max(1, steps // 10)
        begin, end = steps - length, steps
    else:
        begin, end = spec.warmup_steps, spec.decay_steps if spec.decay_steps is not None else steps
    done = min(1.0, max(0.0, (step - begin) / max(1, end - begin)))
    shape = 0.5 * (1 + math.cos(math.pi * done)) if spec.schedule == "cosine" else 1.0 - done
    return spec.min_lr_ratio + (1.0 - spec.min_lr_ratio) * shape
