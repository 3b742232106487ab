"""The few statistics that the experiments report, each with its assumption."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

# Two-sided 95 % quantiles of Student's t by degrees of freedom; beyond them the normal one is near enough.
_T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


def spread(values: Sequence[float]) -> float:
    return max(values) - min(values)


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of the mean of independent, roughly normal values; None of fewer than two."""
    if len(values) < 2:
        return None
    half = _T.get(len(values) - 1, 1.96) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values) - half, statistics.mean(values) + half


def said(bounds: tuple[float, float] | None) -> str:
    return "one value" if bounds is None else f"{bounds[0]:.4f} to {bounds[1]:.4f}"


def sign_test(wins: int, trials: int) -> float:
    """One-sided: how likely so many wins are where both are equally good."""
    return sum(math.comb(trials, k) for k in range(wins, trials + 1)) / 2**trials


def paired_bootstrap(
    a: Sequence[tuple[float, float]], b: Sequence[tuple[float, float]], draws: int = 2000
) -> tuple[float, float]:
    """95 % interval of the difference a - b in bits per byte, over draws of the held-out documents with replacement.

    Args:
        a, b: (bits, bytes) of the same documents under two models, both weighted as the documents count.

    Source: B. Efron and R. Tibshirani, An Introduction to the Bootstrap, 1993.
    """
    random = np.random.default_rng(0)
    bits_a, bits_b = np.array([x for x, _ in a]), np.array([x for x, _ in b])
    sizes = np.array([size for _, size in a])
    chosen = random.integers(len(sizes), size=(draws, len(sizes)))
    differences = (bits_a[chosen].sum(1) - bits_b[chosen].sum(1)) / sizes[chosen].sum(1)
    low, high = np.quantile(differences, [0.025, 0.975])
    return float(low), float(high)
