"""Blocks of documents for tests of packing: token ids that say which document and which place they are of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zephon.ops.block import Block, concatenate, of_documents
from zephon.types import Columns, Ragged


def block_of(*lengths: int, dataset: int = 0, datasets: int = 1, first: int = 1, mask: bool = False) -> Block:
    """Documents of these lengths; the tokens of the n-th are 100 n, 100 n + 1, ..."""
    rows = [np.arange(length, dtype=np.uint32) + 100 * number for number, length in enumerate(lengths, first)]
    fields: dict[str, Ragged] = {"input_ids": Ragged.of(rows)}
    if mask:
        fields["loss_mask"] = Ragged.of([np.ones(length, np.uint8) for length in lengths], np.uint8)
    numbers = np.arange(len(lengths))
    return of_documents(Columns(dataset, np.zeros(len(lengths), np.int64), numbers, None, {**fields}), datasets)


def rows_of(blocks: Sequence[Block | None], field: str = "input_ids") -> list[list[int]]:
    """The rows of some outputs, in order."""
    filled = [block for block in blocks if block is not None]
    if not filled:
        return []
    block = concatenate(filled)
    places = zip(block.part.tolist(), block.row.tolist(), strict=True)
    return [list(map(int, block.parts[part].fields[field][row])) for part, row in places]


def segments_of(block: Block) -> list[tuple[list[int], list[int]]]:
    """Where segments begin in each row, and the dataset of each of them."""
    found = []
    for number, row in zip(block.part.tolist(), block.row.tolist(), strict=True):
        part = block.parts[number]
        assert part.starts is not None
        assert part.origins is not None
        first, last = part.starts.offsets[row], part.starts.offsets[row + 1]
        found.append((part.starts[row].tolist(), part.origins.owners[first:last, 0].tolist()))
    return found
