"""Controllers: the next mixture from what the run has measured. Pure: the same history gives the same weights.

OnlineMixing       a dataset with a higher loss gets more: EXP3, as in ODM (Albalak et al., "Efficient Online Data Mixing For
                   Language Model Pre-Training", 2023, arXiv:2312.02406)
LearningSpeed      a dataset whose loss still falls fast gets more: a power law is fitted to each one's loss, as in ADO
                   (Jiang et al., "Adaptive Data Optimization", 2024, arXiv:2410.11820)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

_GRID = 10**6  # shares are whole millionths: what is recorded is what was decided, to the last bit


class Measured(NamedTuple):
    """What one step has measured.

    Args:
        step: which.
        loss: mean over the trained tokens of each dataset that the step had.
        tokens: of each dataset, trained.
    """

    step: int
    loss: Mapping[str, float]
    tokens: Mapping[str, int]


class MixtureController(Protocol):
    """Decides new weights at fixed boundaries."""

    def decide(self, history: Sequence[Measured]) -> dict[str, float]:
        """Weights of all datasets, which sum to 1, from all steps so far in order."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnlineMixing:
    """Multiplicative weights over the datasets' losses (EXP3).

    With K datasets, e_t = min(1 / K, sqrt(ln K / (K t))) and rewards R that are moving averages of loss / share, decision t
    gives (1 - K e_t) softmax(e_(t-1) R) + e_t.

    Args:
        names: of the datasets.
        every: steps between two decisions: the losses of as many steps are one reward.
        least: the smallest share of a dataset, so that each stays measured.
        smoothing: how much of a reward stays when the next one comes.
    """

    names: Sequence[str]
    every: int
    least: float = 0.01
    smoothing: float = 0.9

    def decide(self, history: Sequence[Measured]) -> dict[str, float]:
        """See `MixtureController`."""
        count, rewards = len(self.names), dict.fromkeys(self.names, 0.0)
        turns = range(0, len(history), self.every)
        for first in turns:
            loss, tokens = _means(history[first : first + self.every])
            whole = sum(tokens.values())
            for name in self.names:
                if tokens.get(name):
                    reward = loss[name] * whole / tokens[name]
                    rewards[name] = self.smoothing * rewards[name] + (1 - self.smoothing) * reward
        rate, before = (min(1 / count, math.sqrt(math.log(count) / (count * max(1, t)))) for t in (len(turns), len(turns) - 1))
        highest = max(rewards.values())
        powers = {name: math.exp(before * (reward - highest)) for name, reward in rewards.items()}
        total = math.fsum(powers.values())
        return _shares({name: (1 - count * rate) * power / total + rate for name, power in powers.items()}, self.least)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearningSpeed:
    """How fast each dataset's loss falls by its own tokens, from a fitted curve e + b n^-a.

    The share of a dataset is its prior times the speed a b n^-a / n times the root of its share so far, which credits a fall
    of the loss to the dataset that it came from; a moving average with the shares so far keeps it calm.

    Args:
        names: of the datasets.
        prior: their shares at the start of the run.
        least: the smallest share of a dataset, so that each stays measured.
        calm: the weight of the shares so far.
    """

    names: Sequence[str]
    prior: Mapping[str, float]
    least: float = 0.01
    calm: float = 0.5

    def decide(self, history: Sequence[Measured]) -> dict[str, float]:
        """See `MixtureController`."""
        seen = {name: sum(step.tokens.get(name, 0) for step in history) for name in self.names}
        whole = max(1, sum(seen.values()))
        speeds = {}
        for name in self.names:
            curve = _fit(_by_tokens(name, history))
            speeds[name] = 0.0 if curve is None else curve.exponent * curve.fall * seen[name] ** -curve.exponent / seen[name]
        wanted = {name: self.prior[name] * speeds[name] * math.sqrt(seen[name] / whole) for name in self.names}
        total = math.fsum(wanted.values())
        if not total:
            return _shares(dict(self.prior), self.least)
        mixed = {name: (1 - self.calm) * wanted[name] / total + self.calm * seen[name] / whole for name in self.names}
        return _shares(mixed, self.least)


class Curve(NamedTuple):
    """loss(n) = floor + fall * n ** -exponent."""

    floor: float
    fall: float
    exponent: float


_EXPONENTS = [i / 20 for i in range(1, 21)]
_POINTS = 32  # of a curve that are fitted


def _fit(points: Sequence[tuple[int, float]]) -> Curve | None:
    """The power law nearest to (tokens, loss), by least squares; None where fewer than three points are there or none falls."""
    if len(points) < 3:
        return None
    best: tuple[float, Curve] | None = None
    for exponent in _EXPONENTS:
        xs, ys = [n**-exponent for n, _ in points], [loss for _, loss in points]
        mean_x, mean_y = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
        spread = math.fsum((x - mean_x) ** 2 for x in xs)
        fall = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread if spread else 0.0
        floor = mean_y - fall * mean_x
        if fall <= 0 or floor < 0:
            continue
        error = math.fsum((floor + fall * x - y) ** 2 for x, y in zip(xs, ys, strict=True))
        if best is None or error < best[0]:
            best = error, Curve(floor, fall, exponent)
    return None if best is None else best[1]


def _by_tokens(name: str, history: Sequence[Measured]) -> list[tuple[int, float]]:
    """(tokens of the dataset so far, its mean loss) of `_POINTS` stretches with equally many steps; but for the first, in
    which weights are still near their start."""
    size = max(1, len(history) // _POINTS)
    points, seen = [], 0
    for first in range(0, len(history), size):
        loss, tokens = _means(history[first : first + size])
        seen += tokens.get(name, 0)
        if tokens.get(name) and first:
            points.append((seen, loss[name]))
    return points


def _means(steps: Sequence[Measured]) -> tuple[dict[str, float], dict[str, int]]:
    """(mean loss, tokens) of each dataset over some steps."""
    tokens: dict[str, int] = {}
    parts: dict[str, list[float]] = {}
    for step in steps:
        for name, count in step.tokens.items():
            if count and math.isfinite(step.loss.get(name, math.nan)):
                tokens[name] = tokens.get(name, 0) + count
                parts.setdefault(name, []).append(step.loss[name] * count)
    return {name: math.fsum(parts[name]) / tokens[name] for name in tokens}, tokens


def _shares(weights: Mapping[str, float], least: float) -> dict[str, float]:
    """In whole millionths that sum to 1, none below ``least``."""
    total = math.fsum(weights.values())
    least = min(least, 1 / len(weights))
    raised = {name: least + (1 - least * len(weights)) * weight / total for name, weight in weights.items()}
    counts = {name: round(share * _GRID) for name, share in raised.items()}
    largest = max(sorted(counts), key=lambda name: counts[name])
    counts[largest] += _GRID - sum(counts.values())
    return {name: count / _GRID for name, count in counts.items()}
