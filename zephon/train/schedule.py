"""The learning rate as a function of the global step alone, never of ranks, microbatches or restarts.

    rate
    1.0        ________________           wsd: flat, then a straight decay over the last decay_steps
              /                \\
    0.1      /                  \\____     cosine, linear: one decay from the end of warm-up to decay_steps
             warm-up            decay

Steps count from 0, so with ``warmup_steps=10`` the fifth step (index 4) runs at half the peak. With ``warmup_tokens`` or
``decay_tokens`` the trained tokens so far take the place of the step, in units of a full step's tokens.
"""

from __future__ import annotations

import math

from zephon.spec.experiment import OptimizerSpec


def learning_rate(spec: OptimizerSpec, *, step: int, steps: int, tokens: int = 0, tokens_per_step: int = 1) -> float:
    """The rate of step ``step`` (from 0) of a run of ``steps``.

    ``decay_steps`` defaults to the run's length for cosine and linear (where the decay ends), and to a tenth of it for
    wsd (how long it takes).

    Args:
        tokens: trained before this step.
        tokens_per_step: trained in a step without a masked label.
    """
    by_tokens = spec.warmup_tokens is not None or spec.decay_tokens is not None
    warmup = spec.warmup_steps if spec.warmup_tokens is None else spec.warmup_tokens / tokens_per_step
    decay = spec.decay_steps if spec.decay_tokens is None else spec.decay_tokens / tokens_per_step
    at = tokens / tokens_per_step if by_tokens else step
    return spec.lr * _factor(spec, at=at, steps=steps, warmup=warmup, decay=decay)


def _factor(spec: OptimizerSpec, *, at: float, steps: int, warmup: float, decay: float | None) -> float:
    if at < warmup:
        return min(1.0, (at + 1) / warmup)
    if spec.schedule == "constant":
        return 1.0
    if spec.schedule == "wsd":
        length = decay if decay is not None else max(1, steps // 10)
        begin, end = steps - length, float(steps)
    else:
        begin, end = warmup, decay if decay is not None else steps
    done = min(1.0, max(0.0, (at - begin) / max(1.0, end - begin)))
    shape = 0.5 * (1 + math.cos(math.pi * done)) if spec.schedule == "cosine" else 1.0 - done
    return spec.min_lr_ratio + (1.0 - spec.min_lr_ratio) * shape
