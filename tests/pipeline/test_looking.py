"""Looking inside: what lies in a dataset, what a batch holds as text, and what objects say of themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zephon import Dataset, InMemoryShard, Pipeline, StaticMixtureWorkSource, load_tokenizer

DOCUMENTS = [{"text": f"number {i}", "n": i} for i in range(2000)]


def dataset(folder: Path, fmt: str) -> Dataset:
    if fmt == "memory":
        return Dataset.from_dict("d", {"a": InMemoryShard(DOCUMENTS[:3]), "b": InMemoryShard(DOCUMENTS[3:])})
    for name, part in (("a", DOCUMENTS[:3]), ("b", DOCUMENTS[3:])):
        if fmt == "jsonl":
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(document) + "\n" for document in part))
        else:
            pq.write_table(pa.Table.from_pylist(part), folder / f"{name}.parquet")
    return Dataset.from_path("d", str(folder))


@pytest.mark.parametrize("fmt", ["memory", "jsonl", "parquet"])
def test_head_gives_the_first_documents_across_shards(tmp_path: Path, fmt: str) -> None:
    made = dataset(tmp_path, fmt)
    assert made.head() == DOCUMENTS[:5]
    assert made.head(1500) == DOCUMENTS[:1500]
    assert len(made.head(10**6)) == 2000
    assert made.renamed({"text": "content"}).head(1)[0]["content"] == "number 0"


def test_objects_say_what_they_are_in_one_line(tmp_path: Path) -> None:
    made = dataset(tmp_path, "memory")
    source = StaticMixtureWorkSource([made], {"d": 1}, seed=3)
    pipeline = Pipeline(source).tokenize(tokenizer_id="bytes", field="text").pack_flat(8).batch(2)
    assert repr(made).startswith("Dataset('d': memory, 2 shards, ")
    assert repr(source) == "StaticMixtureWorkSource(d 100.0%; seed=3)"
    assert repr(pipeline) == "Pipeline(d -> tokenize -> pack_flat -> batch)"
    batch = next(iter(pipeline))
    pipeline.close()
    assert repr(batch) == "SampleBatch(step 0, microbatch 1 of 1: 2 rows of 8 tokens, fields input_ids)"
    for shown in (made, source, pipeline):
        assert "&#x27;" in shown._repr_html_() or repr(shown).replace(">", "&gt;") in shown._repr_html_()


@pytest.mark.parametrize("isolated", [False, True])
def test_a_batch_gives_its_rows_as_text(isolated: bool) -> None:
    rows = InMemoryShard([{"text": text} for text in ("Hello world", "und Umlaute: \u00e4\u00f6\u00fc")])
    source = StaticMixtureWorkSource([Dataset.from_dict("d", {"s": rows})], shuffle_within_shard=False)
    built = Pipeline(source).options(isolated=isolated).tokenize(tokenizer_id="gpt2", field="text").pack_flat(64).batch(1)
    assert [batch.text() for batch in built] == [["Hello world<|endoftext|>und Umlaute: \u00e4\u00f6\u00fc<|endoftext|>"]]


def test_text_of_stored_ids_says_what_to_do() -> None:
    source = StaticMixtureWorkSource([Dataset.from_dict("d", {"s": InMemoryShard([{"input_ids": [1, 2]}])})])
    (batch,) = Pipeline(source).batch(1)
    with pytest.raises(ValueError, match="load_tokenizer"):
        batch.text()


@pytest.mark.parametrize(("name", "special"), [("gpt2", "<|endoftext|>"), ("bytes", "<eos>")])
def test_decoding_is_the_inverse_of_encoding(name: str, special: str) -> None:
    tokenizer, text = load_tokenizer(name), "a  b\n\u00e9\u4e2d\U0001f600"
    assert tokenizer.eos_id is not None
    assert tokenizer.decode([*tokenizer.encode([text]).values, tokenizer.eos_id]) == text + special
