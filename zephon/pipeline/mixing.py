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
from zephon.work.chunks import pieces_of

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


def mixing_of(definition: Definition) -> Mixing:
    """Of a pipeline with a batch; reads no data, but measures tokens a byte where the mixture needs it."""
    source, world, settings = definition.source, definition.world, definition.source.describe()
    weights = definition.weights
    sizes = [dataset.size for dataset in source.datasets]
    shares = [float(w) / float(sum(weights)) for w in weights] if weights else [size / sum(sizes) for size in sizes]
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


def mixing_text(mixing: Mixing) -> str:
    """One line, and one for each setting that hurts."""
    line = (
        f"two rows of a global batch lie in one shard with chance {mixing.chance:.2%}, {mixing.times:.2g} times that of a "
        f"uniform shuffle ({mixing.uniform:.2%})"
    )
    return "; ".join([line, *(f"better with: {hint}" for hint in mixing.hurts)])


def _same_place(sizes: np.ndarray) -> float:
    """The chance that two uniform places of a dataset lie in one shard, and not further apart there than `PLACE`."""
    parts = np.asarray(sizes, np.float64)
    return float((parts * np.minimum(parts, PLACE)).sum() / parts.sum() ** 2)
