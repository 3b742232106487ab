"""Mixtures: weights in tokens, and the low-discrepancy sequence of datasets that realizes them in chunks."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from zephon.errors import ConfigError

TABLE = 1 << 14  # places of a period, doubled as long as a frequency is off by more than `EXACT` of it
LARGEST = 1 << 18
EXACT, BOUND = Fraction(1, 1000), Fraction(1, 100)


Weight: TypeAlias = "float | tuple[float, MixtureSpec | Mapping[str, Weight]]"
"""Of a dataset; or of a part of the mixture, with its own mixture."""


class MixtureSpec:
    """Relative weights of datasets, in tokens.

    A mixture may be part of another one: ``{"code": 1, "text": (3, {"web": 2, "books": 1})}`` gives three quarters to text, of
    which the web has two thirds. A dataset that is named in several of them gets the sum of its shares.

    Args:
        weights: by dataset name, any sum; or by the name of a part, as pairs of its weight and its own mixture. All positive.

    Raises:
        ConfigError: a weight that is not positive, or a part that has a dataset's name.
    """

    def __init__(self, weights: Mapping[str, Weight]) -> None:
        parts = {name: weight for name, weight in weights.items() if isinstance(weight, tuple)}
        shares = {name: weight[0] if isinstance(weight, tuple) else weight for name, weight in weights.items()}
        bad = {name: weight for name, weight in shares.items() if not weight > 0}
        if bad or not weights:
            raise ConfigError(
                f"mixture weights must be positive, got {bad or weights}",
                follows="a dataset would never be read, or the shares would have no meaning",
                remedy="remove a dataset instead of giving it weight 0",
            )
        self.weights = {name: weight for name, weight in shares.items() if name not in parts}
        for share, inner in parts.values():
            mixture = inner if isinstance(inner, MixtureSpec) else MixtureSpec(inner)
            for name, weight in mixture.normalized.items():
                self.weights[name] = self.weights.get(name, 0.0) + share * weight
        if twice := sorted(parts.keys() & self.weights.keys()):
            raise ConfigError(
                f"{twice[0]!r} is the name of a part of the mixture and of a dataset in it",
                follows="nobody could tell which of the two a weight is of",
                remedy="give the part another name",
            )

    @property
    def normalized(self) -> dict[str, float]:
        total = sum(self.weights.values())
        return {name: weight / total for name, weight in self.weights.items()}

    def for_datasets(self, names: Sequence[str]) -> list[Fraction]:
        """Weights in the order of the datasets. Raises ConfigError when the two sets of names differ."""
        if set(names) != set(self.weights):
            raise ConfigError(
                f"the mixture names {sorted(self.weights)}, the datasets are {sorted(names)}",
                follows="a dataset would have no share, or a share no dataset",
                remedy="give every dataset a weight, and nothing else",
            )
        return [Fraction(self.weights[name]) for name in names]

    def __repr__(self) -> str:
        return f"MixtureSpec({self.weights})"


class Interleaving:
    """An endless sequence of datasets with given frequencies, by closed form and in even order.

    Dataset d gets c_d of the ``size`` places of one period; its j-th place is the (j + 1/2) / c_d part of the period,
    and all places are sorted. So after any number of steps each dataset has its share to within a chunk or two, and
    both "which dataset is number g" and "how many of dataset d came before g" are a table look-up.
    """

    def __init__(self, frequencies: Sequence[Fraction]) -> None:
        self.size = TABLE
        self.counts = apportion(frequencies, self.size)
        while self.size < LARGEST and _off(frequencies, self.counts) > EXACT:
            self.size *= 2
            self.counts = apportion(frequencies, self.size)
        keys, owners = [], []
        for dataset, count in enumerate(self.counts):
            if count:
                keys.append((2 * np.arange(count, dtype=np.int64) + 1) * (1 << 40) // count)
                owners.append(np.full(count, dataset, np.int64))
        order = np.lexsort((np.concatenate(owners), np.concatenate(keys)))
        table = np.concatenate(owners)[order]
        # Lists: one look-up at a time is several times faster in them than in arrays.
        self._table: list[int] = table.tolist()
        self._places: list[list[int]] = [np.flatnonzero(table == dataset).tolist() for dataset in range(len(self.counts))]

    def dataset(self, g: int) -> int:
        return self._table[g % self.size]

    def before(self, g: int, dataset: int) -> int:
        """How many of the first g belong to the dataset."""
        period, place = divmod(g, self.size)
        return period * self.counts[dataset] + bisect.bisect_left(self._places[dataset], place)

    def place(self, n: int, dataset: int) -> int:
        """Where the n-th (from 0) of the dataset is: the inverse of `before`."""
        period, index = divmod(n, self.counts[dataset])
        return period * self.size + self._places[dataset][index]


def refuse_what_cannot_be_mixed(names: Sequence[str], frequencies: Sequence[Fraction]) -> None:
    """Raises ConfigError for a dataset with so few of the chunks that its share would be off by more than `BOUND`."""
    if _off(frequencies, apportion(frequencies, LARGEST)) > BOUND:
        least, name = min(zip(frequencies, names, strict=True))
        one_in = float(sum(frequencies) / least)
        raise ConfigError(
            f"dataset {name!r} would get one in {one_in:,.0f} chunks",
            follows=f"its share of the tokens would be off by more than {float(BOUND):.0%} of it",
            remedy=f"give it {one_in / float(2 * BOUND * LARGEST):.2g} times its weight, or leave it out",
        )


def _off(frequencies: Sequence[Fraction], counts: Sequence[int]) -> Fraction:
    """By how much of its frequency the worst count is off."""
    whole, places = sum(frequencies), sum(counts)
    pairs = zip(frequencies, counts, strict=True)
    return max(abs(count * whole / (places * frequency) - 1) for frequency, count in pairs if frequency)


def apportion(frequencies: Sequence[Fraction], total: int) -> list[int]:
    """Whole numbers in the ratio of the frequencies, with the given sum (largest remainders); only a frequency of 0 gives 0."""
    whole = sum(frequencies)
    shares = [frequency * total / whole for frequency in frequencies]
    counts = [max(1, int(share)) if share else 0 for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda d: (int(shares[d]) - shares[d], d))
    turn = 0
    while sum(counts) != total:
        step = 1 if sum(counts) < total else -1
        chosen = by_remainder[turn % len(counts)] if step > 0 else max(range(len(counts)), key=lambda d: counts[d])
        if shares[chosen]:
            counts[chosen] += step
        turn += 1
    return counts
