"""Running text made from a word list that never ends, so that a tokenizer meets new words all the time, as it does in a run."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterator

import numpy as np

from benchmarks.corpus import texts
from zephon.types import Array

WORDS = 1_000_000
_LETTERS = 27  # a to z, and the end of a word
_LONGEST = 20
_CYRILLIC = str.maketrans("abcdefghijklmnopqrstuvwxyz", "абцдефгхийклмнопярстувшхыз")


class Prose:
    """Documents of 3 to 12 KB whose words follow Zipf's law, three in ten of the rarer ones in Cyrillic letters.

    The commonest words are those of the built-in text. The others are spelled by a chain that looks two letters back and has
    learned from these, so that they fall into subwords as rare words do.

    Source of the law: G. K. Zipf, Human Behavior and the Principle of Least Effort, 1949.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        counted: collections.Counter[str] = collections.Counter()
        for text in texts():
            counted.update(re.findall("[A-Za-z]+", text))
        known = [word for word, _ in counted.most_common(20_000)]
        words = [",", ".", ".\n", *(" " + word for word in known)]
        for number, word in enumerate(self._spelled(counted, WORDS - len(words))):
            words.append(" " + (word.translate(_CYRILLIC) if number % 10 < 3 else word))
        encoded = [word.encode() for word in words]
        self._bytes = np.frombuffer(b"".join(encoded), np.uint8)
        self._lengths = np.array([len(word) for word in encoded])
        self._starts = np.cumsum(self._lengths) - self._lengths
        self._cumulative = np.cumsum(1 / np.arange(1, len(words) + 1))

    def documents(self) -> Iterator[str]:
        while True:
            drawn = self._random.random(int(self._random.integers(400, 1600))) * self._cumulative[-1]
            words = np.searchsorted(self._cumulative, drawn)
            lengths = self._lengths[words]
            before = np.cumsum(lengths) - lengths
            at = np.repeat(self._starts[words] - before, lengths) + np.arange(lengths.sum())
            yield self._bytes[at].tobytes().decode()

    def _spelled(self, counted: dict[str, int], count: int) -> list[str]:
        follows = _follows(counted)
        before = last = np.full(count, _LETTERS - 1)
        letters = np.zeros((count, _LONGEST), np.uint8)
        alive = np.ones(count, bool)
        for place in range(_LONGEST):
            drawn = self._random.random(count) * follows[before, last, -1]
            letter = np.minimum((follows[before, last] <= drawn[:, None]).sum(1), _LETTERS - 1)
            if place < 2:  # no word of one letter
                letter = np.where(letter == _LETTERS - 1, self._random.integers(0, _LETTERS - 1, count), letter)
            alive &= letter != _LETTERS - 1
            letters[:, place] = np.where(alive, letter + ord("a"), 0)
            before, last = last, letter
        return letters.view(f"S{_LONGEST}").ravel().astype(str).tolist()


def _follows(counted: dict[str, int]) -> Array:
    """float64[27, 27, 27]: how often a letter follows two others, summed up over the letters."""
    follows = np.zeros((_LETTERS,) * 3)
    for word, count in counted.items():
        before = last = _LETTERS - 1
        for letter in [*(ord(c) - ord("a") for c in word.lower()), _LETTERS - 1]:
            follows[before, last, letter] += count
            before, last = last, letter
    return np.cumsum(follows + 1e-3, axis=2)
