"""A source that repeats but holds nothing ends in an error, not in reading for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from zephon import Dataset, Pipeline, StaticMixtureWorkSource
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
