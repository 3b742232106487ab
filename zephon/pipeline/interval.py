"""How many chunks of a lane lie between two sentinels: as many as a shuffle's buffer needs to fill.

It follows from the datasets with which the run begins, so that no later phase changes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from zephon.types import Counts, Sampled
from zephon.work import WorkSource
from zephon.work.phases import exact_shares
from zephon.work.source import FINEST

FLUSH_EVERY = 8  # chunks, where an op reorders and nothing else was asked for
BYTES_A_TOKEN = 4.5  # of text, where nothing was measured: rather too many, so that a shuffle's buffer fills


def shares_at_start(source: WorkSource) -> Mapping[str, Fraction]:
    """Relative weights of the datasets with which a run begins, in tokens; without a mixture, in bytes."""
    if source.phases:
        return exact_shares(source.phases[0])
    if source.mixture is not None:
        return {name: Fraction(weight) for name, weight in source.mixture.weights.items()}
    return {dataset.name: Fraction(dataset.size) for dataset in source.datasets}


def mean_chunk_bytes(shares: Mapping[str, Fraction], lengths: Mapping[str, int], measured: Counts) -> int:
    """Bytes of a chunk, in the mean over the chunks of a mixture.

    Args:
        shares: of each of its datasets in tokens.
        lengths: bytes of a chunk, by dataset.
        measured: what calibration counted.
    """
    sizes = {name: float(share) / _tokens_a_byte(measured.get(name)) for name, share in shares.items()}
    return math.ceil(sum(sizes.values()) / sum(size / lengths[name] for name, size in sizes.items()))


def bytes_of_rows(rows: int, length: int, shares: Mapping[str, Fraction], measured: Counts) -> int:
    """About how many bytes of text make so many rows of ``length`` tokens; the others as of `mean_chunk_bytes`."""
    known = measured if len(shares) > 1 else {}  # nothing is measured for one dataset alone, unless others join it
    a_token = sum(float(share) / _tokens_a_byte(known.get(name)) for name, share in shares.items()) / float(
        sum(shares.values())
    )
    return math.ceil(rows * length * a_token)


def chunks_an_interval(flush_every: int, chunk_bytes: int, mean_bytes: int, needed: int) -> int:
    """Chunks between two sentinels.

    ``flush_every`` counts chunks of ``chunk_bytes``; where they are shorter, as many more come, so that an interval keeps its
    length. Chunks below `FINEST` count as that: of a dataset of a few bytes there would be millions, all at workers at once.

    Args:
        flush_every: chunks of ``chunk_bytes`` that were asked for, or the default; at least 1.
        mean_bytes: of a chunk.
        needed: bytes that an interval has at least.
    """
    return max(flush_every, max(flush_every * chunk_bytes, needed) // max(FINEST, mean_bytes))


def _tokens_a_byte(sampled: Sampled | None) -> float:
    return sampled.tokens / sampled.size if sampled is not None and sampled.tokens else 1 / BYTES_A_TOKEN
