"""How long a chunk may be so that a mixture is fair, and how fair it then is. Pure arithmetic.

Of a dataset with share w, a thousand global batches of B tokens hold 1,000 w B. What makes them more or fewer:

    chunks     a lane has each dataset to within a chunk (see `zephon.work.segments`), and lanes are not at one place: half a
               chunk, times the root of the number of lanes
    documents  some make more tokens of a byte than others: what calibration saw among its pieces, in so much text
    ratio      tokens a byte are known to within the standard error of calibration
"""

from __future__ import annotations

import math
from fractions import Fraction

from zephon.errors import ConfigError
from zephon.types import Sampled

FAIR = 4.0  # see `fair_tokens`
SOON = 4  # steps that a lane may need for a chunk
BATCHES = 1000  # over so many a share is to hold
UNFAIR = 0.05  # a chunk of so much of what these hold of its dataset is refused
APART = 0.41  # standard deviation, in chunks, of what two ends of a stretch of a lane are off


def fair_tokens(share: float, lanes: int, batch_tokens: int) -> float:
    """Tokens that a chunk may have, so that a share holds over any thousand global batches, and over the first twenty.

    Nor may a lane need many steps for one chunk: a run would begin with more of those that are long.

    Args:
        share: of the dataset, in tokens.
        lanes: how many.
        batch_tokens: of one global batch.
    """
    part = min(0.5 + share, FAIR / math.sqrt(lanes))
    return min(part * share * batch_tokens, SOON * batch_tokens / lanes)


def share_error(share: float, lanes: int, batch_tokens: int, chunk_tokens: float, sampled: Sampled) -> float:
    """Standard deviation of a dataset's share of a thousand global batches, relative to its weight.

    Args:
        share, lanes, batch_tokens: as of `fair_tokens`.
        chunk_tokens: of one of its chunks.
        sampled: what calibration counted of it.
    """
    held = BATCHES * share * batch_tokens
    ratio = sampled.error / 1e6
    documents = ratio * math.sqrt(sampled.tokens / held)
    return math.hypot(APART * math.sqrt(lanes) * chunk_tokens / held, documents, ratio)


def refuse_unfair(name: str, share: Fraction, batch_tokens: int, chunk_bytes: int, tokens_a_byte: Fraction) -> None:
    """Raises ConfigError for chunks so long that a dataset's share of a thousand global batches would be a matter of chance."""
    held = BATCHES * share * batch_tokens
    most = int(held * Fraction(UNFAIR) / tokens_a_byte)
    if chunk_bytes <= most:
        return
    tokens = int(chunk_bytes * tokens_a_byte)
    raise ConfigError(
        f"chunk_bytes={chunk_bytes:,} is about {tokens:,} tokens of dataset {name!r}, of which {BATCHES:,} global batches hold "
        f"{int(held):,}",
        follows="its share would be right only over many more steps, and some stretches would have none of it",
        remedy=f"leave chunk_bytes out, so that it follows from the mixture; at most {max(1, most):,} fits",
    )
