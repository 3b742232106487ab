"""The pool: documents wait by reference, rows are made of slices of them, and a block goes when its last document has gone."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.packing.documents import block_of, rows_of, segments_of
from zephon.errors import DataError
from zephon.ops.block import Block, concatenate
from zephon.ops.packing.pool import Pool


def held(pool: Pool, block: Block) -> int:
    return pool.hold(block, block.used())


def test_rows_are_slices_side_by_side_and_padding() -> None:
    pool = Pool(6, 9, 1)
    held(pool, block_of(3, 2, 4))
    rows = pool.rows([[(0, 0, 3), (1, 0, 2)], [(2, 0, 4)]])
    assert rows is not None
    assert rows_of([rows]) == [[100, 101, 102, 200, 201, 9], [300, 301, 302, 303, 9, 9]]
    assert segments_of(rows) == [([0, 3], [0, 0]), ([0], [0])]
    assert (rows.used().tolist(), rows.parts[0].used.tolist()) == ([5, 4], [5, 4])  # type: ignore[union-attr]


def test_documents_are_numbered_over_blocks_and_one_row_may_mix_them() -> None:
    pool = Pool(5, 0, 2)
    assert held(pool, block_of(2, 1, dataset=0, datasets=2)) == 0
    assert held(pool, block_of(3, dataset=1, datasets=2, first=7)) == 2
    rows = pool.rows([[(2, 0, 3), (0, 0, 2)]])
    assert rows is not None
    assert rows_of([rows]) == [[700, 701, 702, 100, 101]]
    assert rows.counts.tolist() == [[2, 3]]


def test_a_block_is_held_until_its_last_document_has_left() -> None:
    pool = Pool(4, 0, 1)
    held(pool, block_of(4, 0, 4))
    pool.rows([[(0, 0, 4)]])
    assert len(pool) == 1
    pool.rows([[(2, 0, 4)]])
    assert len(pool) == 0, "a document without a token is not waited for"


def test_a_split_document_has_left_with_its_last_slice() -> None:
    pool = Pool(3, 0, 1)
    held(pool, block_of(5))
    assert rows_of([pool.rows([[(0, 0, 3)]])]) == [[100, 101, 102]]
    assert len(pool) == 1
    assert rows_of([pool.rows([[(0, 3, 5)]])]) == [[103, 104, 0]]
    assert len(pool) == 0


@pytest.mark.parametrize("length", [2, 200])
def test_short_and_long_slices_are_copied_alike(length: int) -> None:
    pool = Pool(3 * length, 0, 1)
    held(pool, block_of(length, length, length))
    (row,) = rows_of([pool.rows([[(2, 0, length), (0, 0, length), (1, 0, length)]])])
    assert row == [*range(300, 300 + length), *range(100, 100 + length), *range(200, 200 + length)]


def test_groups_are_payloads_of_documents_or_their_tokens_alone() -> None:
    pool = Pool(8, 0, 1)
    held(pool, block_of(3, 2, mask=True))
    groups = pool.groups([[(1, 0, 2), (0, 0, 3)]], whole=True)
    assert groups is not None
    (samples,) = groups.parts[0].fields["packed_samples"]
    assert [sorted(sample) for sample in samples] == [["input_ids", "loss_mask"]] * 2
    assert [sample["input_ids"].tolist() for sample in samples] == [[200, 201], [100, 101, 102]]
    assert groups.counts.tolist() == [[5]]
    held(pool, block_of(3, mask=True))
    alone = pool.groups([[(2, 1, 3)]], whole=False)
    assert alone is not None
    ((sample,),) = alone.parts[0].fields["packed_samples"]
    assert (list(sample), sample["input_ids"].tolist()) == (["input_ids"], [101, 102])


def test_nothing_makes_no_block() -> None:
    assert Pool(4, 0, 1).rows([]) is None
    assert Pool(4, 0, 1).groups([], whole=True) is None


def test_documents_with_other_fields_beside_their_tokens_are_an_error() -> None:
    pool = Pool(8, 0, 1)
    mixed = concatenate([block_of(3, mask=True), block_of(2)])
    pool.hold(mixed, np.array([3, 2]))
    with pytest.raises(DataError, match="loss_mask"):
        pool.rows([[(0, 0, 3), (1, 0, 2)]])
