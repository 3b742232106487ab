"""The stream of wrap: tokens laid end to end with the boundaries of their documents, and the rows cut from it."""

from __future__ import annotations

import numpy as np

from tests.ops.packing.documents import block_of, rows_of, segments_of
from zephon.ops.block import concatenate
from zephon.ops.packing.stream import Boundaries, Stream


def ints(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


def owners(*rows: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Documents of dataset 0 and shard 0 with these rows."""
    return np.array([(0, 0, row, 0) for row in rows], np.int64)


def test_a_document_without_a_token_begins_nowhere() -> None:
    extended = Boundaries(ints(0), owners(7)).extended(ints(0, 2, 2, 5), owners(1, 2, 3), after=4)
    assert extended.starts.tolist() == [0, 4, 6]
    assert extended.owners[:, 2].tolist() == [7, 1, 3]


def test_a_document_that_is_cut_begins_anew_after_the_cut_and_says_what_came_before() -> None:
    head, tail = Boundaries(ints(0, 4), owners(1, 2)).split(6, 9)
    assert (head.starts.tolist(), head.owners[:, 2:].tolist()) == ([0, 4], [[1, 0], [2, 0]])
    assert (tail.starts.tolist(), tail.owners[:, 2:].tolist()) == ([0], [[2, 2]])
    _, later = tail.split(2, 3)
    assert (later.starts.tolist(), later.owners[:, 2:].tolist()) == ([0], [[2, 4]])


def test_a_cut_between_documents_or_at_the_end_adds_none() -> None:
    between = Boundaries(ints(0, 4), owners(1, 2)).split(4, 9)[1]
    assert (between.starts.tolist(), between.owners[:, 2:].tolist()) == ([0], [[2, 0]])
    assert Boundaries(ints(0, 4), owners(1, 2)).split(9, 9)[1].starts.tolist() == []


def test_full_rows_leave_and_the_remainder_is_held_for_the_next_block() -> None:
    stream = Stream.empty()
    first, tokens = stream.pour(block_of(5, 3), 4, 1)
    assert (rows_of([first]), tokens, len(stream)) == ([[100, 101, 102, 103], [104, 200, 201, 202]], 8, 0)
    assert stream.pour(block_of(3), 4, 1) == (None, 3)
    second, _ = stream.pour(block_of(6, first=5), 4, 1)
    assert rows_of([second]) == [[100, 101, 102, 500], [501, 502, 503, 504]]
    assert stream.values["input_ids"].tolist() == [505]


def test_segments_begin_where_a_document_or_a_row_does() -> None:
    rows, _ = Stream.empty().pour(block_of(5, 3, 4), 6, 1)
    assert rows is not None
    assert segments_of(rows) == [([0, 5], [0, 0]), ([0, 2], [0, 0])]


def test_a_row_of_two_datasets_counts_the_tokens_of_each() -> None:
    mixed = concatenate([block_of(5, dataset=0, datasets=2), block_of(7, dataset=1, datasets=2)])
    rows, _ = Stream.empty().pour(mixed, 6, 2)
    assert rows is not None
    assert rows.counts.tolist() == [[5, 1], [0, 6]]
    assert [datasets for _, datasets in segments_of(rows)] == [[0, 1], [1]]


def test_fields_with_one_value_a_token_go_along() -> None:
    stream = Stream.empty()
    rows, _ = stream.pour(block_of(5, mask=True), 4, 1)
    assert rows_of([rows], "loss_mask") == [[1, 1, 1, 1]]
    assert stream.values["loss_mask"].tolist() == [1]


def test_pouring_is_appending_and_splitting() -> None:
    rng = np.random.default_rng(3)
    poured, appended, rows = Stream.empty(), Stream.empty(), []
    for _ in range(12):
        block = block_of(*rng.integers(0, 9, 6).tolist())
        rows.append(poured.pour(block, 7, 1)[0])
        appended.append(block)
    head, tail = appended.split(len(appended) // 7 * 7)
    assert np.array_equal(np.concatenate(rows_of(rows)), head.values["input_ids"])
    assert np.array_equal(poured.values["input_ids"], tail.values["input_ids"])
    assert np.array_equal(poured.boundaries.starts, tail.boundaries.starts)
