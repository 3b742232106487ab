"""All randomness of the loader: keys from names, numbers from counters.

``derive(seed, "dataset", "web", "epoch", 3)`` is a 128-bit key; every random choice is a function of such a key and a
counter, so nothing depends on call order, process, platform, ``hash()`` or NumPy's distribution code (only the raw
Philox stream is used, which NumPy keeps stable across versions).
"""

from __future__ import annotations

import hashlib
import threading

import numpy as np
import numpy.typing as npt

_ROUNDS = 6
_WORD = (1 << 64) - 1


def derive(seed: int, *names: str | int) -> int:
    """A 128-bit key for one purpose. Different names give independent keys; ``1`` and ``"1"`` differ."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (int(seed), *names):
        tag = b"i" if isinstance(part, int) else b"s"
        data = str(part).encode()
        digest.update(tag + len(data).to_bytes(4, "little") + data)
    return int.from_bytes(digest.digest(), "little")


def raw(key: int, n: int) -> npt.NDArray[np.uint64]:
    """``n`` uniform 64-bit integers: the raw Philox4x64-10 stream of ``key``."""
    return _generator(key).random_raw(n)


class _Generator(threading.local):
    """One generator a thread: making one asks the system for entropy that is never used, which costs more than the numbers."""

    def __init__(self) -> None:
        self.philox = np.random.Philox(key=0)
        self.fresh = self.philox.state


_own = _Generator()


def _generator(key: int) -> np.random.Philox:
    """This thread's generator at the beginning of a key's stream."""
    state = _own.fresh
    state["state"]["key"][:] = key & _WORD, key >> 64
    _own.philox.state = state
    return _own.philox


def permutation(key: int, n: int) -> npt.NDArray[np.int64]:
    """A uniform permutation of ``range(n)`` as int64[n]; O(n log n)."""
    if n < 2:
        return np.zeros(n, np.int64)
    return np.argsort(raw(key, n), kind="stable").astype(np.int64)


def below(values: npt.NDArray[np.uint64], n: int) -> npt.NDArray[np.int64]:
    """Maps uniform 64-bit integers onto ``range(n)`` (n < 2**32); the bias is under n / 2**32."""
    return ((values >> np.uint64(32)) * np.uint64(n) >> np.uint64(32)).astype(np.int64)


def mixed(key: int, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """A uniform 64-bit integer for each of any numbers, under a key.

    Source of the method: the finalizer of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
    2014), once for each half of the key.
    """
    values = numbers.astype(np.uint64)
    for half in (key & _WORD, key >> 64):
        values = (values ^ np.uint64(half)) + np.uint64(0x9E3779B97F4A7C15)
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        values ^= values >> np.uint64(31)
    return values


class KeyedPermutation:
    """A pseudorandom permutation of ``range(n)`` with random access and no table.

    A balanced Feistel network over the smallest even-width power of two that holds ``n``, with cycle walking: an output
    outside the range is fed back until it lands inside (fewer than four rounds on average). Source of the method:
    Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002.
    """

    def __init__(self, key: int, n: int) -> None:
        self.n = n
        self._half = max(1, ((n - 1).bit_length() + 1) // 2)
        self._mask = (1 << self._half) - 1
        seed = key.to_bytes(16, "little")
        # Keyed hashes that hold the number of their round already: a copy costs less than a new one.
        self._rounds = [hashlib.blake2b(bytes([step]), digest_size=8, key=seed) for step in range(_ROUNDS)]

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.n:
            raise IndexError(index)
        value = self._encrypt(index)
        while value >= self.n:
            value = self._encrypt(value)
        return value

    def index(self, value: int) -> int:
        """Where a value is: the inverse of ``self[index]``. Raises ValueError where it is nowhere."""
        if not 0 <= value < self.n:
            raise ValueError(f"{value} is not below {self.n}")
        value = self._decrypt(value)
        while value >= self.n:
            value = self._decrypt(value)
        return value

    def _decrypt(self, value: int) -> int:
        left, right = value >> self._half, value & self._mask
        for keyed in reversed(self._rounds):
            digest = keyed.copy()
            digest.update(left.to_bytes(8, "little"))
            left, right = right ^ (int.from_bytes(digest.digest(), "little") & self._mask), left
        return left << self._half | right

    def _encrypt(self, value: int) -> int:
        left, right = value >> self._half, value & self._mask
        for keyed in self._rounds:
            digest = keyed.copy()
            digest.update(right.to_bytes(8, "little"))
            left, right = right, left ^ (int.from_bytes(digest.digest(), "little") & self._mask)
        return left << self._half | right
