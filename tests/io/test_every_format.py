"""The same documents in any format, cut into chunks of any size, are one stream of tokens, or one error about one document."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.io.samples import WRITERS, Document
from zephon import Dataset, InMemoryShard, Pipeline, StaticMixtureWorkSource
from zephon.errors import DataError

texts = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=40)
ids = st.integers(0, 300) | st.sampled_from([0, 2**31 - 1])
odd_ids = ids | st.sampled_from([-1, 2**32 + 5, 2**63 - 1])


@st.composite
def token_documents(draw: st.DrawFn) -> list[Document]:
    """Stored ids, now and then one that is no id; all documents with a mask of their length, or none."""
    rows = draw(
        st.lists(st.lists(draw(st.sampled_from([ids, ids, odd_ids])), min_size=1, max_size=12), min_size=1, max_size=12)
    )
    masked = draw(st.booleans())
    return [{"input_ids": row, **({"loss_mask": [i % 2 for i in range(len(row))]} if masked else {})} for row in rows]


def dataset(folder: Path, fmt: str, documents: list[Document]) -> Dataset:
    if fmt == "memory":
        return Dataset.from_dict("d", {"a": InMemoryShard(documents)})
    path = folder / f"a.{fmt}"
    path.write_bytes(WRITERS[fmt](documents))
    return Dataset.from_path("d", str(path))


def stream(data: Dataset, chunk_bytes: int, *, text: str | None) -> Any:
    """All that the batches hold, or the error: its class, and the number of the document as far as its address tells it."""
    stored_order = {"shuffle_shards": False, "shuffle_within_shard": False}
    source = StaticMixtureWorkSource([data], chunk_bytes=chunk_bytes, stop_after_passes=1, **stored_order)
    pipeline = Pipeline(source).options(runner="inline", canonical_replicas=1)
    if text is not None:
        pipeline.tokenize(tokenizer_id="bytes", field=text, special_tokens="eos")
    pipeline.pack_flat(8, algorithm="wrap").batch(1)
    try:
        return [{name: values.tolist() for name, values in batch.payload.items()} for batch in pipeline]
    except DataError as error:
        notes = "\n".join(error.__notes__)
        assert "address: dataset 'd', shard 'a" in notes, notes
        return type(error), error.what.partition("shard")[0][:20]


FORMATS = ["memory", "jsonl", "jsonl.gz", "jsonl.zst", "parquet", "arrow", "ipc", "feather", "mds", "mds.zstd"]


@settings(max_examples=10)
@given(st.lists(texts.map(lambda text: {"text": text}), min_size=1, max_size=12), st.sampled_from([20, 100, 10_000]))
def test_texts_are_the_same_tokens_in_every_format_and_chunk_size(documents: list[Document], chunk_bytes: int) -> None:
    documents = [*documents, {"text": "the last one"}]
    with tempfile.TemporaryDirectory() as folder:
        expected = stream(dataset(Path(folder), "memory", documents), 10_000, text="text")
        for fmt in [*FORMATS, "tar"]:
            data = dataset(Path(folder), fmt, documents)
            assert stream(data, chunk_bytes, text="txt" if fmt == "tar" else "text") == expected, fmt


@settings(max_examples=10)
@given(token_documents(), st.sampled_from([20, 100, 10_000]))
@example([{"input_ids": [1, 2**32 + 5, -1]}], 100)
def test_stored_tokens_are_the_same_in_every_format_and_chunk_size_or_the_same_error(
    documents: list[Document], chunk_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        expected = stream(dataset(Path(folder), "memory", documents), 10_000, text=None)
        for fmt in FORMATS:
            assert stream(dataset(Path(folder), fmt, documents), chunk_bytes, text=None) == expected, fmt


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_stored_number_that_is_no_id_is_an_error_with_its_address(tmp_path: Path, fmt: str) -> None:
    outcome = stream(dataset(tmp_path, fmt, [{"input_ids": [1]}, {"input_ids": [-1]}]), 1000, text=None)
    assert outcome[0] is DataError
