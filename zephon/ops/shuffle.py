"""shuffle: a per-lane buffer, emptied at each sentinel; all its randomness is a function of (seed, lane, block).

streaming      a full buffer emits a random element for each new one; the remainder leaves in permuted order
block          the buffer is filled, permuted and emptied as a whole
block_warmup   as block, with the first blocks of an interval smaller, so that the first outputs come sooner
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import numpy as np

from zephon.ops.block import Block, concatenate
from zephon.ops.op import Accumulator, AccumulatorOp, LaneContext
from zephon.seeds import below, derive, permutation
from zephon.spec.fields import Positive

Algorithm = Literal["streaming", "block", "block_warmup"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shuffle(AccumulatorOp):
    """See `Pipeline.shuffle`."""

    name: ClassVar[str] = "shuffle"

    buffer_size: Positive = 256
    seed: int = 0
    algorithm: Algorithm = "streaming"

    @property
    def joins(self) -> bool:
        return True

    def open(self, context: LaneContext) -> Accumulator:
        key = derive(self.seed, "shuffle", context.lane)
        if self.algorithm == "streaming":
            return Streaming(self.buffer_size, key)
        return Blocks(self.buffer_size, key, warmup=self.algorithm == "block_warmup")


class Streaming:
    """Draws one index for each element that finds the buffer full."""

    def __init__(self, size: int, key: int) -> None:
        self._size, self._key = size, key
        self._held: list[Block] = []
        self._count = 0
        self.start(0)

    def start(self, position: int) -> None:
        self._block_key = derive(self._key, position)
        self._draws: np.random.Philox | None = None  # made when the buffer first overflows: it is not cheap

    def push(self, block: Block) -> Block | None:
        self._held.append(block)
        self._count += len(block)
        overflow = self._count - self._size
        if overflow <= 0:
            return None
        pool = concatenate(self._held)
        buffer = list(range(self._size))
        chosen = []
        if self._draws is None:
            self._draws = np.random.Philox(key=self._block_key)
        draws = below(self._draws.random_raw(overflow), self._size).tolist()
        for new, draw in zip(range(self._size, self._count), draws, strict=True):
            chosen.append(buffer[draw])
            buffer[draw] = new
        self._held, self._count = [pool.take(np.array(buffer)).compact()], self._size
        return pool.take(np.array(chosen))

    def flush(self, *, final: bool) -> Block | None:
        if not self._count:
            return None
        pool = concatenate(self._held)
        self._held, self._count = [], 0
        return pool.take(permutation(derive(self._block_key, "rest"), len(pool)))


class Blocks:
    """Permutes a full buffer as a whole."""

    def __init__(self, size: int, key: int, *, warmup: bool) -> None:
        self._size, self._key, self._warmup = size, key, warmup
        self._held: list[Block] = []
        self._count = 0
        self.start(0)

    def start(self, position: int) -> None:
        self._block_key = derive(self._key, position)
        self._emitted = 0

    @property
    def _target(self) -> int:
        # An eighth, a quarter, a half of the buffer, then all of it.
        return max(1, self._size >> max(0, 3 - self._emitted)) if self._warmup else self._size

    def push(self, block: Block) -> Block | None:
        self._held.append(block)
        self._count += len(block)
        if self._count < self._target:
            return None
        pool, out, at = concatenate(self._held), [], 0
        while len(pool) - at >= self._target:
            out.append(self._permuted(pool, at, at + self._target))
            at += len(out[-1])
        remainder = pool.take(np.arange(at, len(pool)))
        self._held, self._count = ([remainder.compact()] if len(remainder) else []), len(remainder)
        return concatenate(out)

    def flush(self, *, final: bool) -> Block | None:
        if not self._count:
            return None
        pool = concatenate(self._held)
        self._held, self._count = [], 0
        return self._permuted(pool, 0, len(pool))

    def _permuted(self, pool: Block, first: int, last: int) -> Block:
        order = first + permutation(derive(self._block_key, self._emitted), last - first)
        self._emitted += 1
        return pool.take(order)
