"""ensure_mixture: brings what a lane emits closer to the mixture, by reordering within a bounded buffer.

Elements wait by dataset. The dataset furthest below its share is always next; while none of its elements waits and the
buffer has room, nothing is emitted. All arithmetic is in whole numbers and starts again after each sentinel.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import ClassVar, Literal

import numpy as np

from zephon.errors import ConfigError
from zephon.ops.block import Block, concatenate
from zephon.ops.op import Accumulator, AccumulatorOp, Counting, LaneContext
from zephon.spec.fields import Positive
from zephon.types import Json

WeightBy = Literal["auto", "tokens", "samples"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnsureMixture(AccumulatorOp):
    """See `Pipeline.ensure_mixture`."""

    name: ClassVar[str] = "ensure_mixture"

    max_buffer_size: Positive | None = 1000
    weight_by: WeightBy = "auto"
    warn_tolerance: float | None = None
    mixture: Mapping[str, float] | None = None

    def describe(self) -> Json:
        own = super().describe()
        del own["warn_tolerance"]
        if self.mixture is not None:
            own["mixture"] = {name: str(Fraction(weight)) for name, weight in self._weights().items()}
        return own

    def _weights(self) -> Mapping[str, float]:
        return self.mixture or {}

    def check_source(self, names: Sequence[str], *, mixed: bool) -> None:
        """Raises ConfigError when there is no target, or it names other datasets."""
        if self.mixture is None and not mixed and len(names) > 1:
            raise ConfigError(
                "ensure_mixture has no target: neither it nor the source has a mixture",
                remedy="give mixture={dataset: weight}",
            )
        if self.mixture is not None and (set(self._weights()) != set(names) or min(self._weights().values()) <= 0):
            raise ConfigError(
                f"ensure_mixture's mixture is {dict(self._weights())}, the datasets are {sorted(names)}",
                follows="a dataset would have no share, or a share no dataset",
                remedy="give every dataset a positive weight",
            )

    def open(self, context: LaneContext) -> Accumulator:
        return Balance(self, context)

    def weights_at(self, position: int, context: LaneContext) -> list[int]:
        """Whole numbers in the ratio of the mixture at a position of the lane."""
        weights = context.mixture_at(position)
        if self.mixture is not None:
            weights = [Fraction(self._weights()[name]) for name in context.names]
        if weights is None:
            weights = [Fraction(1)] * context.datasets
        scale = math.lcm(*(weight.denominator for weight in weights))
        return [int(weight * scale) for weight in weights]


class Balance(Counting):
    """A lane's queues."""

    def __init__(self, op: EnsureMixture, context: LaneContext) -> None:
        super().__init__()
        self._op, self._context = op, context
        self._warned = False
        self.start(0)

    def start(self, position: int) -> None:
        self._weights = self._op.weights_at(position, self._context)
        self._sum = sum(self._weights)
        self._blocks: list[Block] = []
        self._queues: list[collections.deque[tuple[int, int]]] = [collections.deque() for _ in self._weights]
        self._emitted = [0] * len(self._weights)
        self._held = self._count = 0

    def push(self, block: Block) -> Block | None:
        owner = np.argmax(block.counts, axis=1) if block.counts.any() else block.datasets()
        sizes = np.ones(len(block), np.int64) if self._by_samples(block) else np.maximum(block.used(), 1)
        self._blocks.append(block)
        base = self._count
        self._count += len(block)
        chosen: list[int] = []
        surplus: list[int] = []
        for i, (dataset, size) in enumerate(zip(owner.tolist(), sizes.tolist(), strict=True)):
            if self._op.max_buffer_size is None:
                (chosen if self._within_share(dataset, size) else surplus).append(base + i)
                continue
            self._queues[dataset].append((base + i, size))
            self._held += 1
            chosen += self._ready(self._op.max_buffer_size)
        if surplus:
            self.drop(block, np.array(surplus) - base, "ensure_mixture: more than its share")
        return self._take(chosen)

    def flush(self, *, final: bool) -> Block | None:
        out = self._take(self._ready(0), last=True)
        self._warn()
        return out

    def _by_samples(self, block: Block) -> bool:
        return self._op.weight_by == "samples" or (self._op.weight_by == "auto" and not block.counts.any())

    def _deficit(self, dataset: int) -> int:
        """How far a dataset is below its share of what was emitted, times the sum of weights."""
        return self._weights[dataset] * sum(self._emitted) - self._sum * self._emitted[dataset]

    def _ready(self, most: int) -> list[int]:
        """What can be emitted now, so that at most ``most`` elements wait."""
        out = []
        while self._held:
            order = sorted(range(len(self._weights)), key=lambda d: (-self._deficit(d), -self._weights[d], d))
            first = next(d for d in order if self._queues[d])
            if first != order[0] and self._held <= most:
                break
            index, size = self._queues[first].popleft()
            self._emitted[first] += size
            self._held -= 1
            out.append(index)
        return out

    def _within_share(self, dataset: int, size: int) -> bool:
        """Without a buffer: what would bring a dataset above its share by more than one element is dropped."""
        if sum(self._emitted) and self._deficit(dataset) < 0:
            return False
        self._emitted[dataset] += size
        return True

    def _take(self, chosen: list[int], *, last: bool = False) -> Block | None:
        if not self._blocks:
            return None
        pool = concatenate(self._blocks)
        out = pool.take(np.array(chosen, np.int64)) if chosen else None
        waiting = sorted(index for queue in self._queues for index, _ in queue)
        remainder = pool.take(np.array(waiting, np.int64)).compact()
        self._blocks = [] if last or not waiting else [remainder]
        self._count = len(waiting)
        number = {index: i for i, index in enumerate(waiting)}
        for queue in self._queues:
            for _ in range(len(queue)):
                index, size = queue.popleft()
                queue.append((number[index], size))
        return out

    def _warn(self) -> None:
        tolerance, total = self._op.warn_tolerance, sum(self._emitted)
        if tolerance is None or not total or self._warned:
            return
        worst = max(range(len(self._weights)), key=lambda d: abs(self._deficit(d)))
        off = abs(self._deficit(worst)) / (self._sum * total)
        if off > tolerance:
            self._warned = True
            warnings.warn(
                f"lane {self._context.lane}: {self._context.names[worst]!r} has {self._emitted[worst] / total:.3f} of a flush "
                f"interval instead of {self._weights[worst] / self._sum:.3f}; raise flush_every_k_chunks or lower chunk_bytes",
                stacklevel=2,
            )
