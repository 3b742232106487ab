"""A source that repeats but holds nothing ends in an error, not in reading for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.parts import program
from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.engine.progress import NoProgressGuard
from zephon.errors import DataError


def pipeline(path: Path, lanes: int) -> Pipeline:
    source = StaticMixtureWorkSource([Dataset.from_path("t", str(path))], exhausted_policy="repeat", chunk_bytes=64)
    return (
        Pipeline(source)
        .options(canonical_replicas=lanes, max_workers=1)
        .tokenize(tokenizer_id="bytes", field="text")
        .pack_flat(16, algorithm="wrap")
        .batch(1)
    )


def test_a_dataset_of_blank_lines_is_an_error_that_names_lane_and_dataset(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n" * 500)
    with pytest.raises(DataError, match=r"lane 0 found no document in \d+ chunks in a row of 't'"):
        next(iter(pipeline(tmp_path, 4)))


def test_one_document_among_blank_lines_is_enough_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        "\n" * 20000 + '{"text": "only one, but it comes again with every pass"}\n' + "\n" * 20000
    )
    batches = iter(pipeline(tmp_path, 1))
    taken = [next(batches) for _ in range(20)]
    assert all(batch.real_rows == 1 for batch in taken)
    batches.close()  # type: ignore[attr-defined]


def guard(chunks: int) -> NoProgressGuard:
    return NoProgressGuard(2, program([["a"]] * chunks), 10)


def until_it_gives_up(empty: NoProgressGuard, most: int = 10_000) -> int:
    for count in range(1, most):
        try:
            empty.chunk(0)
        except DataError:
            return count
    return most


def test_empty_chunks_are_read_through_several_passes_before_the_lane_gives_up() -> None:
    assert until_it_gives_up(guard(1)) == 4 * 1 + 64 + 1
    assert until_it_gives_up(guard(100)) == 4 * 100 + 64 + 1


def test_one_document_begins_the_count_anew() -> None:
    watched = guard(1)
    for _ in range(60):
        watched.chunk(0)
    watched.chunk(1)
    assert until_it_gives_up(watched) == 69


def test_sentinels_without_a_sequence_are_an_error_only_while_packing_takes_nothing_either() -> None:
    watched = guard(1)
    for position in range(18, 1000, 8):
        watched.sentinel(position, 0, [position])  # long documents: tokens come in, no row is full yet
    watched.sentinel(1000, 0, [1000])
    watched.sentinel(1064, 0, [1000])
    with pytest.raises(DataError, match="lane 2 made no sequence of what it found in 72 chunks in a row of 'd'"):
        watched.sentinel(1072, 0, [1000])


def test_a_sequence_is_progress() -> None:
    watched = guard(1)
    for position in range(18, 1000, 8):
        watched.sentinel(position, 1, [])
