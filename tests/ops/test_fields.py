"""Fields of documents: the same rule in every format, whichever document, shard or chunk comes first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zephon import Dataset, InMemoryShard, Pipeline, StaticMixtureWorkSource
from zephon.errors import ConfigError, DataError
from zephon.types import Json

FORMATS = ("memory", "jsonl", "parquet")


def stored(folder: Path, fmt: str, documents: Sequence[Json], **columns: pa.DataType) -> Dataset:
    """The documents in a format; ``columns`` are the types of Parquet's columns where they are not the usual ones."""
    if fmt == "memory":
        return Dataset.from_dict("d", {"a": InMemoryShard(documents)})
    if fmt == "jsonl":
        (folder / "a.jsonl").write_bytes(b"".join(orjson.dumps(document) + b"\n" for document in documents))
    else:
        names = list(dict.fromkeys(name for document in documents for name in document))
        arrays = {name: pa.array([document.get(name) for document in documents], columns.get(name)) for name in names}
        pq.write_table(pa.table(arrays), folder / "a.parquet")
    return Dataset.from_path("d", str(folder / f"a.{fmt}"))


def pipeline(dataset: Dataset, *, chunk_bytes: int = 1 << 20, **options: Any) -> Pipeline:
    source = StaticMixtureWorkSource([dataset], shuffle_within_shard=False, shuffle_shards=False, chunk_bytes=chunk_bytes)
    return Pipeline(source).options(runner="inline", **options)


def packed(made: Pipeline, algorithm: Any = "wrap", length: int = 4) -> list[dict[str, list[float]]]:
    batches = made.pack_flat(length, algorithm=algorithm).batch(1)
    return [{name: np.asarray(column)[0].tolist() for name, column in batch.fields.items()} for batch in batches]


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(
    "ids", [[1, 2**32 + 5, 7], [1, -1, 7], [1, None, 7], None], ids=["large", "negative", "null", "no list"]
)
def test_ids_out_of_range_are_a_bad_document_in_every_format(tmp_path: Path, fmt: str, ids: object) -> None:
    documents: list[Json] = [{"input_ids": [1, 2, 3, 4]}, {"input_ids": ids}, {"input_ids": [5, 6, 7, 8]}]
    dataset = stored(tmp_path, fmt, documents, input_ids=pa.list_(pa.int64()))
    with pytest.raises(DataError, match="not token ids") as caught:
        packed(pipeline(dataset))
    assert "dataset 'd', shard 'a" in "".join(caught.value.__notes__)
    kept = packed(pipeline(dataset, on_error="quarantine"))
    assert [row["input_ids"] for row in kept] == [[1, 2, 3, 4], [5, 6, 7, 8]]


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("kind", [pa.int32(), pa.int64()])
@pytest.mark.parametrize("algorithm", ["wrap", "first_fit"])
def test_stored_labels_keep_the_mark_of_what_is_not_trained(
    tmp_path: Path, fmt: str, kind: pa.DataType, algorithm: str
) -> None:
    documents: list[Json] = [{"input_ids": [1, 2, 3, 4], "labels": [-100, 2, 3, -100]}]
    dataset = stored(tmp_path, fmt, documents, labels=pa.list_(kind))
    assert [row["labels"] for row in packed(pipeline(dataset), algorithm)] == [[-100, 2, 3, -100]]


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("algorithm", ["wrap", "first_fit"])
@pytest.mark.parametrize(
    ("masks", "kind"),
    [
        ([[False, True, True, True], [True, False, True, True]], pa.bool_()),
        ([[0, 1, 1, 1], [1, 0, 1, 1]], pa.int16()),
        ([[0.5, 0.25, 1.0, 0.0], [1.0, 0.0, 1.0, 2.5]], pa.float32()),
        ([[0.5, 0.25, 1.0, 0.0], [1.0, 0.0, 1.0, 2.5]], pa.float64()),
    ],
    ids=["bool", "whole", "float32", "float64"],
)
def test_masks_and_weights_of_any_type_go_with_the_tokens(
    tmp_path: Path, fmt: str, algorithm: str, masks: list[list[float]], kind: pa.DataType
) -> None:
    documents: list[Json] = [{"input_ids": [1, 2, 3, 4], "loss_mask": mask} for mask in masks]
    dataset = stored(tmp_path, fmt, documents, loss_mask=pa.list_(kind))
    assert [row["loss_mask"] for row in packed(pipeline(dataset), algorithm)] == masks


@pytest.mark.parametrize("algorithm", ["wrap", "first_fit"])
@pytest.mark.parametrize("chunk_bytes", [1, 1 << 20])
def test_weights_stay_exact_after_a_document_whose_mask_is_whole(algorithm: Any, chunk_bytes: int) -> None:
    documents: list[Json] = [
        {"input_ids": np.arange(3, dtype=np.uint32), "loss_mask": mask} for mask in ([1, 1, 0], [0.5, 0.75, 1], [0, 300, 1])
    ]
    dataset = Dataset.from_dict("d", {"a": InMemoryShard(documents)})
    expected = [[1, 1, 0], [0.5, 0.75, 1], [0, 300, 1]]
    for length in (3, 9) if algorithm == "wrap" else (3,):
        (batch,) = pipeline(dataset, chunk_bytes=chunk_bytes).pack_flat(length, algorithm=algorithm).batch(9 // length)
        assert np.asarray(batch.fields["loss_mask"]).reshape(3, 3).tolist() == expected


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("algorithm", ["wrap", "first_fit"])
@pytest.mark.parametrize("chunk_bytes", [1, 1 << 20])
@pytest.mark.parametrize("bare", [0, 1])
def test_a_mask_in_some_documents_only_is_an_error_with_an_address(
    tmp_path: Path, fmt: str, algorithm: str, chunk_bytes: int, bare: int
) -> None:
    documents: list[Json] = [{"input_ids": [1, 2, 3, 4], "loss_mask": [0, 0, 1, 1]} for _ in range(2)]
    del documents[bare]["loss_mask"]
    dataset = stored(tmp_path, fmt, documents, loss_mask=pa.list_(pa.int64()))
    with pytest.raises(DataError, match="loss_mask") as caught:
        packed(pipeline(dataset, chunk_bytes=chunk_bytes), algorithm, 8)
    assert "dataset 'd', shard 'a" in "".join(caught.value.__notes__)


def sized(documents: Sequence[Json], dp_degree: int, rank: int, algorithm: Any, *, chunk_bytes: int) -> Pipeline:
    """A rank of a run with four lanes, a document a row."""
    dataset = Dataset.from_dict("d", {"a": InMemoryShard(documents)})
    made = pipeline(dataset, chunk_bytes=chunk_bytes, canonical_replicas=4, global_batch_size=4)
    return made.options(dp_degree=dp_degree, dp_group_id=rank).pack_flat(2, algorithm=algorithm).batch(1)


@pytest.mark.parametrize("algorithm", ["wrap", "best_fit"])
@pytest.mark.parametrize("chunk_bytes", [32, 128])
@pytest.mark.parametrize("name", ["loss_mask", "labels", "weights"])
@pytest.mark.parametrize("first_has", [True, False])
def test_the_first_document_decides_the_columns_of_a_stream_also_after_a_restart_at_any_step_and_size(
    algorithm: Any, chunk_bytes: int, name: str, first_has: bool
) -> None:
    """All others are unlike it, so that each step after a restart is one without any sign of the stream's own columns."""
    count = 64
    kinds: tuple[Json, Json] = ({"url": "as many bytes so"}, {name: [0, 1]})
    documents: list[Json] = [{"input_ids": [i, i], **kinds[first_has]} for i in range(count)]
    unlike: list[Json] = [documents[0], *({"input_ids": [i, i], **kinds[not first_has]} for i in range(1, count))]
    one = sized(documents, 1, 0, algorithm, chunk_bytes=chunk_bytes)
    for step, batches in enumerate(one.steps()):
        list(batches)
        state = one.checkpoint()
        if step in (0, 3, 11):
            for dp_degree, rank in ((1, 0), (2, 1), (4, 2)):
                resumed = sized(unlike, dp_degree, rank, algorithm, chunk_bytes=chunk_bytes).restore(state)
                with pytest.raises(DataError, match=f"{name!r} with one number for each token") as caught:
                    list(resumed)
                assert "dataset 'd', shard 'a', row" in "".join(caught.value.__notes__)
                assert "(dataset 'd', shard 'a', row 0)" in caught.value.what
    one.close()


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("chunk_bytes", [1, 1 << 20])
def test_a_list_that_is_as_long_as_a_document_by_chance_is_no_column(tmp_path: Path, fmt: str, chunk_bytes: int) -> None:
    documents: list[Json] = [{"input_ids": [i] * 4, "tags": list(range(4 if i == 3 else i))} for i in range(2, 8)]
    rows = packed(pipeline(stored(tmp_path, fmt, documents), chunk_bytes=chunk_bytes))
    assert [sorted(row) for row in rows] == [["input_ids"]] * 6


def test_datasets_with_different_columns_are_refused_at_the_start() -> None:
    masked = Dataset.from_dict("m", {"a": InMemoryShard([{"input_ids": [1, 2], "loss_mask": [0, 1]}] * 4)})
    bare = Dataset.from_dict("b", {"a": InMemoryShard([{"input_ids": [1, 2]}] * 4)})
    made = Pipeline(StaticMixtureWorkSource([masked, bare])).options(runner="inline").pack_flat(2).batch(1)
    with pytest.raises(ConfigError, match="dataset 'm', shard 'a', row 0 has a field 'loss_mask'"):
        iter(made)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("name", ["loss_mask", "labels"])
@pytest.mark.parametrize("place", [0, 1])
def test_a_mask_or_labels_of_another_length_than_the_tokens_are_a_bad_document(
    tmp_path: Path, fmt: str, name: str, place: int
) -> None:
    documents: list[Json] = [{"input_ids": [i, 2, 3, 4], name: [0, 0, 1, 1]} for i in range(3)]
    documents[place][name] = [1, 1, 1]
    dataset = stored(tmp_path, fmt, documents)
    with pytest.raises(DataError, match=f"field '{name}' holds 3 numbers beside 4 token ids"):
        packed(pipeline(dataset))
    kept = packed(pipeline(dataset, on_error="quarantine"))
    assert [row["input_ids"][0] for row in kept] == [i for i in range(3) if i != place]


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("name", ["loss_mask", "labels"])
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ([1.0, float("nan"), 0.0, 1.0], None),
        ([1.0, float("inf"), 0.0, 1.0], None),
        (["1", "0", "0", "1"], None),
        ([1, 0, 0, 1], pa.list_(pa.decimal128(5, 0))),
    ],
    ids=["nan", "infinite", "text", "decimal"],
)
def test_a_mask_that_is_no_mask_is_a_bad_document_and_never_left_out(
    tmp_path: Path, fmt: str, name: str, value: list[object], kind: pa.DataType | None
) -> None:
    if (kind is not None and fmt != "parquet") or (fmt == "jsonl" and isinstance(value[0], float)):
        pytest.skip("the format has no such numbers")
    dataset = stored(tmp_path, fmt, [{"input_ids": [1, 2, 3, 4], name: value}], **({name: kind} if kind else {}))
    with pytest.raises(DataError, match=f"field '{name}' holds") as caught:
        packed(pipeline(dataset))
    assert "shard 'a" in "".join(caught.value.__notes__)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="two columns are called 'text'"):
        list(pipeline(Dataset.from_path("d", str(tmp_path))).tokenize(tokenizer_id="bytes", field="text").batch(1))


def test_a_page_of_a_server_that_refuses_is_no_shard_of_two_bad_lines(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("<!DOCTYPE html>\n<html><body>403</body></html>\n")
    made = pipeline(Dataset.from_path("d", str(tmp_path)), on_error="quarantine")
    with pytest.raises(DataError, match="a page of HTML or XML"):
        list(made.tokenize(tokenizer_id="bytes", field="text").batch(1))


def test_shards_of_parquet_may_differ_in_columns_that_nobody_uses(tmp_path: Path) -> None:
    pq.write_table(pa.table({"input_ids": [[1, 2]], "url": ["u"], "n": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"input_ids": [[3, 4]], "n": [0.5]}), tmp_path / "b.parquet")
    pq.write_table(pa.table({"n": ["x"], "input_ids": pa.array([[5, 6]], pa.list_(pa.uint16()))}), tmp_path / "c.parquet")
    for chunk_bytes in (1, 1 << 20):
        rows = packed(pipeline(Dataset.from_path("d", str(tmp_path)), chunk_bytes=chunk_bytes), length=2)
        assert [row["input_ids"] for row in rows] == [[1, 2], [3, 4], [5, 6]]


def test_a_null_row_in_a_later_shard_of_parquet_is_a_bad_document(tmp_path: Path) -> None:
    pq.write_table(pa.table({"input_ids": [[1, 2], [3, 4]]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"input_ids": [None, [5, 6]]}), tmp_path / "b.parquet")
    for chunk_bytes in (1, 1 << 20):
        made = pipeline(Dataset.from_path("d", str(tmp_path)), chunk_bytes=chunk_bytes, on_error="quarantine")
        assert [row["input_ids"] for row in packed(made, length=2)] == [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_dotted_name_goes_inward_in_every_format(tmp_path: Path, fmt: str) -> None:
    documents: list[Json] = [{"meta": {"text": text, "inner": {"text": text * 2}}} for text in ("ab", "cd")]
    dataset = stored(tmp_path, fmt, documents)
    for field, expected in (("meta.text", [b"ab", b"cd"]), ("meta.inner.text", [b"abab", b"cdcd"])):
        made = pipeline(dataset).tokenize(tokenizer_id="bytes", field=field, special_tokens="none").batch(1)
        assert [bytes(np.asarray(batch.payload["input_ids"][0]).tolist()) for batch in made] == expected
    with pytest.raises(DataError, match=r"no field 'meta\.missing'"):
        list(pipeline(dataset).tokenize(tokenizer_id="bytes", field="meta.missing").batch(1))


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("field", ["content", "meta.body"])
def test_a_field_renamed_at_reading_is_read_under_its_new_name_in_every_format(tmp_path: Path, fmt: str, field: str) -> None:
    documents: list[Json] = [{"content": text, "meta": {"body": text}, "text": "no"} for text in ("ab", "cd")]
    dataset = stored(tmp_path, fmt, documents)
    made = (
        pipeline(dataset.renamed({field: "text"})).tokenize(tokenizer_id="bytes", field="text", special_tokens="none").batch(1)
    )
    assert [bytes(np.asarray(batch.payload["input_ids"][0]).tolist()) for batch in made] == [b"ab", b"cd"]
    assert dataset.renamed({field: "text"}).identity != dataset.identity


@pytest.mark.parametrize("fmt", ["memory", "jsonl"])
def test_a_document_without_the_renamed_field_is_an_error_that_names_both_names(tmp_path: Path, fmt: str) -> None:
    documents: list[Json] = [{"content": "ab"}, {"text": "not this one"}]
    dataset = stored(tmp_path, fmt, documents).renamed({"content": "text"})
    with pytest.raises(DataError, match="no field 'text'") as caught:
        list(pipeline(dataset).tokenize(tokenizer_id="bytes", field="text").batch(1))
    assert "field 'content' is read as 'text'" in "".join(caught.value.__notes__)
