"""SampleBatch: one microbatch of a rank, as the training loop receives it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zephon.ops.block import Block
from zephon.state import RankState
from zephon.types import Array, Column, IntArray, Ragged


@dataclasses.dataclass(frozen=True, eq=False)
class SampleBatch:
    """Rows of one lane.

    Args:
        fields: columns by name, arrays [rows, max_length] for packed sequences, else lists of rows.
        starts: for packed rows, where segments begin in each row; None for documents.
        used: int64[rows], tokens of each row before its padding.
        step: the optimizer step, from 0.
        microbatch: (index, count) among this rank's microbatches of the step.
        real_rows: rows behind these have zero weight and no slot.
        slots: int64[real_rows], each row's place in the global batch.
        tokens: tokens by dataset name.
        state: the loader's state after this batch.
        emit_positions: whether `payload` has positions.
    """

    fields: Mapping[str, Column]
    starts: Ragged | None
    used: IntArray
    step: int
    microbatch: tuple[int, int]
    real_rows: int
    slots: IntArray
    tokens: Mapping[str, int]
    state: RankState
    emit_positions: bool = True

    def __len__(self) -> int:
        return len(self.used)

    @functools.cached_property
    def payload(self) -> dict[str, Any]:
        """All columns, with ``positions`` int32[rows, length] that restart at 0 for each document."""
        payload: dict[str, Any] = dict(self.fields)
        if self.starts is not None and self.emit_positions:
            payload["positions"] = self.positions()
        return payload

    def positions(self) -> Array:
        """int32[rows, length]: each token's place in its document; padding counts from 0 as well."""
        if self.starts is None:
            raise ValueError("documents that are not packed have no positions; use pack_flat before batch")
        ids = self.fields["input_ids"]
        assert isinstance(ids, np.ndarray)
        begins = np.zeros(ids.shape, np.int32)
        row = np.repeat(np.arange(len(self)), self.starts.lengths())
        begins[row, self.starts.values] = self.starts.values
        padded = np.flatnonzero(self.used < ids.shape[1])
        begins[padded, self.used[padded]] = self.used[padded]
        np.maximum.accumulate(begins, axis=1, out=begins)
        return np.arange(ids.shape[1], dtype=np.int32) - begins

    def to_training(self, **options: Any) -> dict[str, Any]:
        """Tensors for a training step (arrays where torch is absent); see `zephon.training.to_training` for the options."""
        from zephon.training import to_training

        return to_training(self, **options)


def gather(block: Block) -> tuple[dict[str, Column], Ragged | None, IntArray]:
    """Copies a block's elements out of its parts: fields, segment starts, used lengths."""
    first = block.parts[0]
    places = list(zip(block.part.tolist(), block.row.tolist(), strict=True))
    if first.starts is None:
        columns: dict[str, Column] = {name: [block.parts[p].fields[name][r] for p, r in places] for name in first.fields}
        return columns, None, block.used()
    fields: dict[str, Column] = {}
    for name, column in first.fields.items():
        assert isinstance(column, np.ndarray)
        out = np.empty((len(places), *column.shape[1:]), column.dtype)
        for i, (part, row) in enumerate(places):
            out[i] = block.parts[part].fields[name][row]
        fields[name] = out
    segments = []
    for part, row in places:
        starts = _starts(block, part)
        segments.append(starts.values[starts.offsets[row] : starts.offsets[row + 1]])
    offsets = np.zeros(len(places) + 1, np.int64)
    np.cumsum([len(segment) for segment in segments], out=offsets[1:])
    return fields, Ragged(np.concatenate(segments), offsets), block.used()


def _starts(block: Block, part: int) -> Ragged:
    starts = block.parts[part].starts
    assert starts is not None
    return starts


def zero_weight(like: Block | None, rows: int, length: int) -> tuple[dict[str, Column], Ragged, IntArray]:
    """Rows of padding only, for a rank that runs more forwards than it owns sequences."""
    names: Sequence[tuple[str, Any]] = [("input_ids", np.uint32)]
    if like is not None:
        names = [(name, np.asarray(column).dtype) for name, column in like.parts[0].fields.items()]
    fields: dict[str, Column] = {name: np.zeros((rows, length), dtype) for name, dtype in names}
    return fields, Ragged(np.zeros(rows, np.int32), np.arange(rows + 1)), np.zeros(rows, np.int64)
