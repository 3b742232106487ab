"""The chunks of a dataset and the order in which an endless walk over it visits them.

All shards are laid end to end and cut every ``chunk_bytes``; a document belongs to the chunk in which its first byte
lies. So small shards share a chunk, large ones have many, and any chunk is found by one binary search:

    shards   |----a----|-b-|c|--------d--------|
    chunks   |     0     |     1     |     2   |       chunk 1 = the end of b, all of c, the start of d
"""

from __future__ import annotations

import functools

from zephon.io.dataset import Dataset
from zephon.seeds import KeyedPermutation, derive
from zephon.types import Chunk, ShardRange


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
        ranges = ranges_between(self.dataset, index * self.chunk_bytes, (index + 1) * self.chunk_bytes)
        return Chunk(self.index, epoch, index, ranges, order_key)


def ranges_between(dataset: Dataset, begin: int, end: int) -> tuple[ShardRange, ...]:
    """The ranges of shards between two places of a dataset whose shards are laid end to end."""
    starts, end = dataset.starts, min(end, dataset.size)
    first = int(starts.searchsorted(begin, side="right")) - 1
    last = int(starts.searchsorted(end))
    ranges = []
    for shard in range(first, last):
        origin = int(starts[shard])
        start, stop = max(begin - origin, 0), min(end, int(starts[shard + 1])) - origin
        if stop > start:
            ranges.append(ShardRange(shard, start, stop))
    return tuple(ranges)


@functools.lru_cache(maxsize=1024)
def _order(seed: int, key: int, count: int) -> KeyedPermutation:
    """In which order a pass visits a dataset's chunks. Held for all datasets together: it costs more to make than to ask."""
    return KeyedPermutation(derive(seed, "chunks", key), count)
