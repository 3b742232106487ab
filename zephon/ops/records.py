"""Records: elements of a block as ordinary dicts, for user code; and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from zephon.errors import DataError
from zephon.ops.block import Block, Part, addresses_of, concatenate, identity, of_documents
from zephon.ops.fields import extract_token_columns
from zephon.types import Array, Column, Columns, Json, Origins, Ragged, element


@dataclasses.dataclass(frozen=True, slots=True)
class SampleMeta:
    """Where a record comes from. Packed rows come from several documents and have no shard and row.

    Args:
        dataset: name of the dataset; None for packed rows.
        shard: name of the shard, or None.
        row: the document's row, or -1.
        lane: the lane.
    """

    dataset: str | None
    shard: str | None
    row: int
    lane: int


@dataclasses.dataclass(frozen=True, slots=True)
class SampleRecord:
    """One document or packed row.

    Args:
        payload: its fields.
        meta: where it comes from.
    """

    payload: Json
    meta: SampleMeta


def is_packed(block: Block) -> bool:
    return bool(block.parts) and block.parts[0].starts is not None


def payloads(block: Block) -> list[Json]:
    """Each element as one new dict; packed rows with ``positions`` int32[length]."""
    out = []
    for number, row in zip(block.part.tolist(), block.row.tolist(), strict=True):
        part = block.parts[number]
        payload = part.element(row)
        if part.starts is not None:
            payload["positions"] = row_positions(part.starts[row], int(part.used[row]), len(payload["input_ids"]))
        out.append(payload)
    return out


def row_positions(starts: Array, used: int, length: int) -> Array:
    """int32[length]: each token's place in its document; padding counts from 0 as well."""
    begins = np.zeros(length, np.int32)
    begins[starts] = starts
    if used < length:
        begins[used] = used
    return np.arange(length, dtype=np.int32) - np.maximum.accumulate(begins)


def columns_of(block: Block) -> Columns:
    """A block of documents as columns, in its order."""
    whole = block.whole
    if whole is not None and whole.documents is not None:
        kept = whole.documents
        return Columns(kept.dataset, kept.shard, kept.row, kept.records, dict(whole.fields), kept.sources)
    sources, shard, row = addresses_of(block, np.arange(len(block)))
    names = list(dict.fromkeys(name for part in block.parts for name in part.fields))
    fields: dict[str, Column] = {}
    for name in names:
        if all(isinstance(part.fields.get(name), Ragged) for part in block.parts):
            fields[name] = block.ragged(name)
    records = []
    for number, place in zip(block.part.tolist(), block.row.tolist(), strict=True):
        part = block.parts[number]
        others = {name: column for name, column in part.fields.items() if name not in fields}
        records.append(element(part.records, others, place))
    return Columns(int(sources[0]) if len(sources) else 0, shard, row, records, fields, sources)


def block_of(new: Sequence[Json], origins: Block, datasets: int) -> Block:
    """New payloads of documents as a block; payload i is addressed as element i of ``origins``."""
    sources, shard, row = addresses_of(origins, np.arange(len(origins)))
    columns = Columns(int(sources[0]) if len(new) else 0, shard, row, [dict(payload) for payload in new], {}, sources)
    return of_documents(extract_token_columns(columns), datasets)


def rows_of(new: Sequence[Json], origins: Block) -> Block:
    """New payloads of packed rows as a block; tokens by dataset stay those of ``origins``.

    Raises:
        DataError: a row is not as long as before, or rows differ in their fields.
    """
    blocks = []
    for i, payload in enumerate(new):
        part = origins.parts[int(origins.part[i])]
        place = int(origins.row[i])
        ids = np.asarray(payload.get("input_ids", ()))
        length = len(part.fields["input_ids"][place])
        if ids.shape != (length,):
            raise DataError(
                f"a transform after packing returned a row of {ids.shape} instead of {(length,)} tokens",
                follows="rows of a batch would differ in length",
                remedy="change documents before pack_flat, or keep the length of the row",
            )
        assert part.starts is not None
        assert part.used is not None
        assert part.origins is not None
        starts, used = part.starts[place], int(part.used[place])
        owners = part.origins.owners[part.starts.offsets[place] : part.starts.offsets[place + 1]]
        positions = payload.pop("positions", None)
        if positions is not None:
            zeros = np.flatnonzero(np.asarray(positions)[:used] == 0)
            if not np.array_equal(zeros, starts):
                which = np.searchsorted(starts, zeros, side="right") - 1
                owners = owners[which]
                owners[:, 3] += zeros - starts[which]
                starts = zeros.astype(np.int32)
        fields: dict[str, Column] = {name: _as_row(value) for name, value in payload.items()}
        ragged = Ragged(np.asarray(starts, np.int32), np.array([0, len(starts)]))
        row_part = Part(fields, np.empty(0, np.int64), ragged, np.array([used]), origins=Origins(owners, ragged))
        blocks.append(identity(row_part, origins.counts[i : i + 1]))
    return concatenate(blocks)


def _as_row(value: object) -> Array:
    array = np.asarray(value)
    if array.dtype.kind in "iufb":
        return array[None]
    held = np.empty(1, object)
    held[0] = value
    return held


def metas(block: Block, lane: int, sources: Sequence[Any]) -> list[SampleMeta]:
    dataset, shard, row = addresses_of(block, np.arange(len(block)))
    return [
        SampleMeta(sources[d].name, sources[d].shards[s], r, lane) if d >= 0 else SampleMeta(None, None, -1, lane)
        for d, s, r in zip(dataset.tolist(), shard.tolist(), row.tolist(), strict=True)
    ]
