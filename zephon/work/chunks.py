"""The chunks of a dataset and the order in which an endless walk over it visits them.

All shards are laid end to end and cut; a document belongs to the piece in which its first byte lies. So small shards share
a chunk, large ones have many, and any chunk is found by a few binary searches. A chunk of a permuted dataset is several
*pieces* from places far apart, one of each part of the dataset, so that what is read together was not written together:

    shards   |----a----|-b-|c|--------d--------|
    parts    |    part 0     |     part 1      |     as many parts as a chunk has pieces
    pieces   | 0 | 1 | 2 | 3 | 4 | 5 | 6  | 7  |     chunk 1 = piece 2 of part 0 and piece 7 of part 1, say
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from zephon.io.dataset import Dataset
from zephon.seeds import KeyedPermutation, derive
from zephon.types import Chunk, ShardRange

PIECE = 1 << 14  # bytes: a piece has as many at least
PIECES = 8  # of a chunk, at most


def pieces_of(dataset: Dataset, chunk_bytes: int) -> int:
    """From how many places a chunk of so many bytes comes: one where reading at a place costs much more than its bytes."""
    return max(1, min(PIECES, chunk_bytes // PIECE)) if dataset.reads_anywhere else 1


class ChunkOrder:
    """The n-th chunk of an endless walk over one dataset, pass after pass, by closed form.

    Args:
        dataset: the dataset.
        index: its index in the source, which the chunks carry.
        chunk_bytes: length of a chunk, in the format's units.
        seed: of the run; every dataset and every pass has a key of its own.
        shuffle_chunks: visit the chunks of each pass through a keyed permutation.
        shuffle_documents: permute the documents inside each chunk.
        reshuffle: whether each pass has an order of its own.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        index: int,
        chunk_bytes: int,
        seed: int,
        shuffle_chunks: bool,
        shuffle_documents: bool,
        reshuffle: bool,
    ) -> None:
        self.dataset = dataset
        self.index = index
        self.chunk_bytes = chunk_bytes
        self.count = -(-dataset.size // chunk_bytes)
        self.pieces = pieces_of(dataset, chunk_bytes) if shuffle_chunks else 1
        self._seed = derive(seed, "dataset", dataset.name)
        self._shuffle_chunks = shuffle_chunks
        self._shuffle_documents = shuffle_documents
        self._reshuffle = reshuffle

    def chunk(self, n: int) -> Chunk:
        """Visit n, counted over all passes."""
        epoch, place = divmod(n, self.count)
        key = epoch if self._reshuffle else 0
        index = _order(self._seed, key, self.count)[place] if self._shuffle_chunks else place
        order_key = derive(self._seed, "documents", key, index) if self._shuffle_documents else None
        return Chunk(self.index, epoch, index, self._ranges(key, index), order_key)

    def visit(self, place: int, epoch: int) -> int:
        """Which visit of a pass has the chunk with a place of the dataset, whose shards are laid end to end."""
        key, count = epoch if self._reshuffle else 0, self.count
        index = place // self.chunk_bytes
        if self.pieces > 1:
            piece = -(-(place + 1) * count * self.pieces // self.dataset.size) - 1
            part, within = divmod(piece, count)
            step, shift = _scatter(self._seed, key, count, self.pieces)[part]
            index = (within - shift) * pow(step, -1, count) % count
        return epoch * count + (_order(self._seed, key, count).index(index) if self._shuffle_chunks else index)

    def _ranges(self, key: int, index: int) -> tuple[ShardRange, ...]:
        if self.pieces == 1:
            return ranges_between(self.dataset, index * self.chunk_bytes, (index + 1) * self.chunk_bytes)
        size, count, spans = self.dataset.size, self.count, []
        whole = count * self.pieces
        for part, (step, shift) in enumerate(_scatter(self._seed, key, count, self.pieces)):
            piece = part * count + (index * step + shift) % count
            spans.append((piece * size // whole, (piece + 1) * size // whole))
        return _ranges_of(self.dataset, spans)


def ranges_between(dataset: Dataset, begin: int, end: int) -> tuple[ShardRange, ...]:
    """The ranges of shards between two places of a dataset whose shards are laid end to end."""
    return _ranges_of(dataset, [(begin, min(end, dataset.size))])


def _ranges_of(dataset: Dataset, spans: Sequence[tuple[int, int]]) -> tuple[ShardRange, ...]:
    """The same of several stretches, one after the other."""
    starts = dataset.starts
    firsts = starts.searchsorted([begin for begin, _ in spans], side="right").tolist()
    lasts = starts.searchsorted([end for _, end in spans]).tolist()
    ranges = []
    for (begin, end), first, last in zip(spans, firsts, lasts, strict=True):
        for shard in range(first - 1, last):
            origin = int(starts[shard])
            start, stop = max(begin - origin, 0), min(end, int(starts[shard + 1])) - origin
            if stop > start:
                ranges.append(ShardRange(shard, start, stop))
    return tuple(ranges)


@functools.lru_cache(maxsize=1024)
def _order(seed: int, key: int, count: int) -> KeyedPermutation:
    """In which order a pass visits a dataset's chunks. Held for all datasets together: it costs more to make than to ask."""
    return KeyedPermutation(derive(seed, "chunks", key), count)


@functools.lru_cache(maxsize=1024)
def _scatter(seed: int, key: int, count: int, pieces: int) -> tuple[tuple[int, int], ...]:
    """(step, shift) by part: chunk c has piece (c * step + shift) mod count of the part; steps have no divisor with count."""
    pairs = []
    for part in range(pieces):
        step, shift = divmod(derive(seed, "pieces", key, part) % (count * count), count)
        while math.gcd(step, count) != 1:
            step = (step + 1) % count if count > 1 else 1
        pairs.append((step, shift))
    return tuple(pairs)
