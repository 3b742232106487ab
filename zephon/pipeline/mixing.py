"""How well a pipeline shuffles, as one number, before anything is read.

Two rows of a global batch lie in one *place* (a shard, or a stretch of a large one) by chance even in a uniform shuffle of all
data. Here they do more often: with L lanes two rows are of one lane with chance about 1 / L, and then of one piece of text with
chance 1 / P, where P pieces are mixed in the lane.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from zephon.ops.shuffle import Shuffle
from zephon.pipeline.definition import Definition
from zephon.pipeline.interval import shares_at_start
from zephon.types import IntArray
from zephon.work.chunks import pieces_of
from zephon.work.fair import share_error

PLACE = 1 << 24  # bytes: what is further apart in a shard is no neighbour
GOOD = 2.0  # times the uniform chance


class Mixing(NamedTuple):
    """Chances that two rows of one global batch lie in one place.

    Args:
        chance: here.
        uniform: in a uniform shuffle of all data.
        hurts: which settings make it worse than it need be, each with what would help; empty where it is good.
    """

    chance: float
    uniform: float
    hurts: tuple[str, ...]

    @property
    def times(self) -> float:
        """How many times as often as in a uniform shuffle."""
        return self.chance / self.uniform

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence for each setting that hurts."""
        worse = f"two rows of a global batch lie in one shard {self.times:.2g} times as often as in a uniform shuffle"
        return tuple(f"{worse}; better: {hint}" for hint in self.hurts)


def mixing_of(definition: Definition) -> Mixing:
    """Of a pipeline with a batch; reads no data, but measures tokens a byte where the mixture needs it."""
    source, world, settings = definition.source, definition.world, definition.source.describe()
    at_start = shares_at_start(source)
    whole = sum(at_start.values())
    shares = [float(at_start.get(name, 0) / whole) for name in definition.names]
    own = [_same_place(dataset.sizes) for dataset in source.datasets]
    uniform = sum(share * share * same for share, same in zip(shares, own, strict=True))
    buffer = max((op.buffer_size for op in definition.ops if isinstance(op, Shuffle)), default=0)
    chunks = max(1, definition.chunks_an_interval) if buffer else 1
    scattered = bool(settings.get("shuffle_chunks", True))
    pieces = [
        pieces_of(d, length) if scattered else 1 for d, length in zip(source.datasets, definition.chunk_lengths, strict=True)
    ]
    mixed = 1 / sum(share / (chunks * count) for share, count in zip(shares, pieces, strict=True))
    rows = world.global_batch_size
    one_lane = (world.per_lane - 1) / max(1, rows - 1)
    chance = uniform + one_lane * (1 - uniform) / mixed
    if not scattered:  # lanes read side by side what lies side by side
        span = world.lanes * chunks * definition.mean_chunk_bytes
        chance = max(chance, min(1.0, PLACE / span))
    hurts = []
    if chance > GOOD * uniform:
        if not scattered:
            hurts.append("chunks are read in stored order: shuffle_chunks=true (shuffle_shards=True)")
        if not buffer:
            hurts.append("no op shuffles rows: shuffle_buffer=256 (.shuffle(256))")
        if scattered and definition.chunk_bytes > 1 << 18:
            hurts.append(f"few chunks of {definition.chunk_bytes:,} bytes fit into a buffer: leave chunk_bytes out")
        if any(not dataset.reads_anywhere for dataset in source.datasets):
            hurts.append("chunks of compressed, Parquet, MDS or tar shards are of one place each: a larger shuffle_buffer")
        elif buffer and not hurts:
            hurts.append("a larger shuffle_buffer, or more lanes")
    return Mixing(chance, uniform, tuple(hurts))


def held_to(definition: Definition, index: int) -> float:
    """Standard deviation of a dataset's share of a thousand global batches, relative to it, as calibration knows it.

    Args:
        index: the dataset's number, of a mixture whose documents are packed.
    """
    name, shares, sampled = definition.names[index], shares_at_start(definition.source), definition.counts
    batch_tokens = definition.batch_tokens
    if name not in shares or name not in sampled or batch_tokens is None or not sampled[name].size:
        return 0.0
    of = sampled[name]
    chunk = definition.chunk_lengths[index] * of.tokens / of.size
    share = float(shares[name] / sum(shares.values()))
    return share_error(share, definition.world.lanes, batch_tokens, chunk, of)


def mixing_text(mixing: Mixing) -> str:
    """One line."""
    return (
        f"two rows of a global batch lie in one shard with chance {mixing.chance:.2%}, {mixing.times:.2g} times that of a "
        f"uniform shuffle ({mixing.uniform:.2%})"
    )


def _same_place(sizes: IntArray) -> float:
    """The chance that two uniform places of a dataset lie in one shard, and not further apart there than `PLACE`."""
    parts = np.asarray(sizes, np.float64)
    return float((parts * np.minimum(parts, PLACE)).sum() / parts.sum() ** 2)
