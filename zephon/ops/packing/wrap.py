"""wrap: a first-in first-out stream of tokens, cut every ``max_length``. No token is lost and no row is padded.

    documents   aaaaa bbb cccccccc dd
    rows of 6   aaaaab bbcccc ccccdd          what does not fill a row is carried, also across a sentinel

What is carried over is always the last tokens pushed, so a number says which they are: restore reads them again from
their documents, and the state holds no token.
"""

from __future__ import annotations

import numpy as np

from zephon.ops.block import Block
from zephon.ops.packing.stream import Stream, make_rows
from zephon.types import IntArray


class Wrap:
    """A lane's stream for one group of datasets.

    Args:
        length: tokens of a row.
        pad_token_id: fills the last row when the lane ends.
        datasets: how many datasets the source has.
    """

    def __init__(self, length: int, pad_token_id: int, datasets: int) -> None:
        self._length, self._pad, self._datasets = length, pad_token_id, datasets
        self._stream = Stream.empty()
        self.tokens_in = 0  # tokens pushed so far; only differences mean anything

    @property
    def carried(self) -> int:
        """Tokens held now: the last ones pushed."""
        return len(self._stream)

    def push(self, block: Block, lengths: IntArray) -> Block | None:
        """Adds documents, whatever their lengths are; returns the rows that are full now."""
        rows, tokens = self._stream.pour(block, self._length, self._datasets)
        self.tokens_in += tokens
        return rows

    def flush(self, *, final: bool) -> Block | None:
        """Nothing at a sentinel; at the lane's end the last row, padded."""
        if not final or not len(self._stream):
            return None
        stream, self._stream = self._stream, Stream.empty()
        used = len(stream)
        fields = {}
        for name, values in stream.values.items():
            row = np.full((1, self._length), self._pad if name == "input_ids" else 0, values.dtype)
            row[0, :used] = values
            fields[name] = row
        starts, owners = stream.boundaries
        return make_rows(fields, starts, owners, np.array([0, len(starts)]), np.array([used]), self._datasets)

    def rebuild(self, block: Block) -> None:
        """Takes documents again that were pushed before the cursor, and emits nothing."""
        self.tokens_in += self._stream.append(block)

    def keep_last(self, carried: int) -> None:
        """Ends the rebuilding: only the last ``carried`` tokens stay."""
        _, self._stream = self._stream.split(len(self._stream) - carried)
