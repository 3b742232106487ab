"""The reader: ranges of shards become the columns of one chunk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from zephon.errors import DataError, NotFound, address_of
from zephon.io import Dataset, InMemoryShard, read
from zephon.io.reader import concatenate
from zephon.seeds import permutation
from zephon.types import Chunk, Ragged, ShardRange


def chunk(*ranges: ShardRange, order_key: int | None = None) -> Chunk:
    return Chunk(3, 0, 0, ranges, order_key)


def test_documents_of_several_shards_keep_the_order_of_the_ranges_and_their_addresses() -> None:
    shards = {name: InMemoryShard([{"text": f"{name}{i}"} for i in range(3)]) for name in "ab"}
    columns = read(Dataset.from_dict("d", shards), chunk(ShardRange(1, 2, 6), ShardRange(0, 0, 4)))
    assert columns.dataset == 3
    assert [document["text"] for document in columns.dicts()] == ["b1", "b2", "a0", "a1"]
    assert (columns.shard.tolist(), columns.row.tolist()) == ([1, 1, 0, 0], [1, 2, 0, 1])


def test_an_order_key_permutes_the_documents_of_the_whole_chunk() -> None:
    dataset = Dataset.from_dict("d", {"s": InMemoryShard([{"id": i} for i in range(20)])})
    columns = read(dataset, chunk(ShardRange(0, 0, 160), order_key=5))
    assert columns.row.tolist() == permutation(5, 20).tolist()
    assert [document["id"] for document in columns.dicts()] == columns.row.tolist()


def test_errors_about_documents_are_collected_where_asked_for_and_else_raised(tmp_path: Path) -> None:
    data = b'{"text": "a"}\nno\n{"text": "b"}\n'
    (tmp_path / "a.jsonl").write_bytes(data)
    dataset = Dataset.from_path("d", str(tmp_path))
    whole = chunk(ShardRange(0, 0, len(data)))
    bad: list[DataError] = []
    assert [document["text"] for document in read(dataset, whole, bad).dicts()] == ["a", "b"]
    addresses = [address_of(error) for error in bad]
    assert [(address.shard, address.row) for address in addresses if address is not None] == [(0, 14)]
    with pytest.raises(DataError, match="line at byte 14"):
        read(dataset, whole)


def test_a_shard_that_went_since_it_was_listed_is_named_with_its_range(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    dataset = Dataset.from_path("d", str(tmp_path))
    (tmp_path / "a.txt").unlink()
    with pytest.raises(NotFound, match="was there when the data was listed") as caught:
        read(dataset, chunk(ShardRange(0, 0, 5)))
    assert "shard 'a.txt', 0 to 5" in caught.value.__notes__[0]


def test_columns_of_each_kind_are_concatenated() -> None:
    assert concatenate([["a"], ["b", "c"]]) == ["a", "b", "c"]
    ragged = concatenate([Ragged.of([np.array([1, 2])]), Ragged.of([np.array([3])])])
    assert isinstance(ragged, Ragged)
    assert [row.tolist() for row in (ragged[0], ragged[1])] == [[1, 2], [3]]
    assert np.array_equal(concatenate([np.array([1]), np.array([2])]), [1, 2])
