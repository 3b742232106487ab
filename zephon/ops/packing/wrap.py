"""wrap: a first-in first-out stream of tokens, cut every ``max_length``. No token is lost and no row is padded.

    documents   aaaaa bbb cccccccc dd
    rows of 6   aaaaab bbcccc ccccdd          what does not fill a row is carried, also across a sentinel

What is carried over is always the last tokens pushed, so a number says which they are: restore reads them again from
their documents, and the state holds no token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zephon.ops.block import Block
from zephon.ops.packing.stream import Stream, make_rows


class Wrap:
    """A lane's stream. See `zephon.ops.op.Carrying`."""

    def __init__(self, length: int, pad_token_id: int, datasets: int) -> None:
        self._length, self._pad, self._datasets = length, pad_token_id, datasets
        self._stream = Stream.empty()
        self._tokens_in = 0

    @property
    def tokens_in(self) -> tuple[int, ...]:
        return (self._tokens_in,)

    @property
    def carried(self) -> tuple[int, ...]:
        return (len(self._stream),)

    def group_of(self, dataset: int) -> int:
        return 0

    def start(self, position: int) -> None:
        pass

    def push(self, block: Block) -> Block | None:
        rows, tokens = self._stream.pour(block, self._length, self._datasets)
        self._tokens_in += tokens
        return rows

    def flush(self, *, final: bool) -> Block | None:
        if not final or not len(self._stream):
            return None
        stream, self._stream = self._stream, Stream.empty()
        used = len(stream)
        fields = {}
        for name, values in stream.values.items():
            row = np.full((1, self._length), self._pad if name == "input_ids" else 0, values.dtype)
            row[0, :used] = values
            fields[name] = row
        offsets = np.array([0, len(stream.starts)])
        return make_rows(fields, stream.starts, stream.sources, offsets, np.array([used]), self._datasets)

    def rebuild(self, block: Block) -> None:
        self._tokens_in += self._stream.append(block)

    def keep_last(self, carried: Sequence[int]) -> None:
        _, self._stream = self._stream.split(len(self._stream) - carried[0])
