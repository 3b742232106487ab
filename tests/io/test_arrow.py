"""Arrow IPC as the real libraries write it: pyarrow in these tests, `datasets` 5.2 the folder `saved/written`.

That folder is thirty documents in two shards: ``datasets.Dataset.from_list(...).save_to_disk(folder, num_shards=2)``.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest

from tests.io.samples import arrow
from zephon import StaticMixtureWorkSource
from zephon.errors import ConfigError, DataError
from zephon.io import Dataset, read

SAVED = Path(__file__).parent / "saved" / "written"


def documents(dataset: Dataset, chunk_bytes: int = 1 << 20) -> list[dict[str, Any]]:
    source = StaticMixtureWorkSource(
        [dataset], shuffle_shards=False, shuffle_within_shard=False, stop_after_passes=1, chunk_bytes=chunk_bytes
    )
    plan, position, rows = source.plan(1), 0, []
    while (chunk := plan.chunk(0, position)) is not None:
        rows += list(read(dataset, chunk).dicts())
        position += 1
    return rows


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("chunk_bytes", [100, 1 << 20])
def test_a_folder_that_datasets_saved_gives_its_documents_in_order(far: bool, chunk_bytes: int) -> None:
    path = str(SAVED)
    if far:
        path = f"memory://saved{chunk_bytes}"
        fsspec.filesystem("memory").put(str(SAVED), f"/saved{chunk_bytes}", recursive=True)
    got = documents(Dataset.from_path("d", path), chunk_bytes)
    assert [row["text"] for row in got] == [f"document {i} é\n" * 3 for i in range(30)]
    assert [row["input_ids"].tolist() for row in got] == [[i, i + 1, i + 2] for i in range(30)]
    assert got[3]["meta"] == {"lang": "en", "score": 0.3}
    assert got[3]["kind"] == 1


def test_what_lies_beside_a_saved_dataset_is_no_shard_and_what_should_is_missed_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    shutil.copytree(SAVED, folder)
    shutil.copy(folder / "data-00000-of-00002.arrow", folder / "cache-12.arrow")  # a result of `map`
    for fmt in (None, "arrow"):
        assert len(Dataset.from_path("d", str(folder), fmt=fmt).shards) == 2
    (folder / "cache-12.arrow").rename(folder / "data-00002-of-00003.arrow")
    with pytest.raises(ConfigError, match=r"'data-00002-of-00003.arrow', which 'state.json' does not list"):
        Dataset.from_path("d", str(folder))
    (folder / "data-00002-of-00003.arrow").unlink()
    (folder / "data-00001-of-00002.arrow").rename(tmp_path / "gone")
    with pytest.raises(ConfigError, match=r"of which 'data-00001-of-00002.arrow' is not there"):
        Dataset.from_path("d", str(folder))


def test_splits_of_one_saved_dataset_are_not_mixed(tmp_path: Path) -> None:
    for split in ("train", "test"):
        shutil.copytree(SAVED, tmp_path / split)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(ConfigError, match=rf"the splits train, test .*\n.*\n.*{tmp_path}/train"):
        Dataset.from_path("d", str(tmp_path))
    assert len(documents(Dataset.from_path("d", str(tmp_path / "train")))) == 30


def test_values_of_dictionaries_are_read_also_where_they_change_between_batches(tmp_path: Path) -> None:
    first, second = (pa.array(values).dictionary_encode() for values in (["a", "b", "a"], ["c", "a", "c"]))
    with pa.ipc.new_stream(tmp_path / "d.arrow", pa.schema([("text", first.type)])) as writer:
        for values in (first, second):
            writer.write_batch(pa.record_batch({"text": values}))
    assert [row["text"] for row in documents(Dataset.from_path("d", str(tmp_path)), 100)] == ["a", "b", "a", "c", "a", "c"]


def test_text_that_is_not_utf8_is_a_bad_row_and_its_neighbours_are_read(tmp_path: Path) -> None:
    text = pa.array([b"good", b"\xff\xfe", b"better"]).view(pa.string())
    with pa.ipc.new_file(tmp_path / "d.arrow", pa.schema([("text", pa.string())])) as writer:
        writer.write_batch(pa.record_batch({"text": text}))
    dataset = Dataset.from_path("d", str(tmp_path))
    bad: list[DataError] = []
    chunk = StaticMixtureWorkSource([dataset], shuffle_within_shard=False).plan(1).chunk(0, 0)
    assert chunk is not None
    assert [row["text"] for row in read(dataset, chunk, bad).dicts()] == ["good", "better"]
    assert "row 1 of" in bad[0].what


@pytest.mark.parametrize("as_file", [True, False])
def test_a_file_that_ends_early_or_is_two_files_is_an_error(tmp_path: Path, as_file: bool) -> None:
    whole = arrow([{"text": f"document {i}"} for i in range(9)], as_file=as_file)
    for harmed in (whole[:-1], whole[:-8], whole[: len(whole) // 2], whole + whole, whole[:4]):
        (tmp_path / "d.arrow").write_bytes(harmed)
        with pytest.raises(DataError, match=r"d.arrow cannot be read as Arrow IPC"):
            documents(Dataset.from_path("d", str(tmp_path)))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.json", b'[\n  {"text": "a"},\n  {"text": "b"}\n]', r"a\.json is one JSON array.*\n.*\n.*jq -c '\.\[\]' a\.json"),
        ("a.json", b'[{"text": "a"}]', "is one JSON array"),
        ("a.csv", b"text\na\n", r"is CSV, which is no training format.*\n.*\n.*from pyarrow import csv, parquet"),
        ("a.tsv.gz", b"text\na\n", r"is TSV, which .*\n.*\n.*delimiter"),
        ("a.xlsx", b"PK\x03\x04", "is Excel, which .*\n.*\n.*save the sheet as CSV"),
    ],
)
def test_what_is_no_training_format_is_refused_by_name_with_what_to_do(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(ConfigError, match=words):
            Dataset.from_path("d", str(path))


def test_json_lines_under_the_name_json_are_read_and_an_array_in_lines_is_refused_where_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'{"text": "a"}\n{"text": "b"}\n')
    assert documents(Dataset.from_path("d", str(tmp_path))) == [{"text": "a"}, {"text": "b"}]
    (tmp_path / "b.jsonl").write_bytes(b'[\n{"text": "a"},\n{"text": "b"}\n]')
    with pytest.raises(DataError, match="is one JSON array"):
        documents(Dataset.from_path("d", str(tmp_path / "b.jsonl")))
    with pytest.raises(ConfigError, match="format 'csv' is CSV"):
        Dataset.from_path("d", str(tmp_path), fmt="csv")
