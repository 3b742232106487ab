"""Which documents a batch is made of: each span names tokens that are really those of its document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ops.recipes import PIPELINES, recipe
from zephon import Dataset, Pipeline, StaticMixtureWorkSource, load_tokenizer
from zephon.batch import SampleBatch
from zephon.types import Address, DocumentSpan

TEXTS = {name: [f"{name}{i} " * (i * 7 % 23 + 1) for i in range(40)] for name in ("a", "b")}


def source(folder: Path) -> tuple[StaticMixtureWorkSource, dict[Address, list[int]]]:
    """JSONL in two shards a dataset; and the tokens of each document by its address."""
    bytes_, tokens = load_tokenizer("bytes"), {}
    datasets = []
    for name, texts in TEXTS.items():
        (folder / name).mkdir()
        for shard, part in (("0.jsonl", texts[:15]), ("1.jsonl", texts[15:])):
            lines = [json.dumps({"text": text}) + "\n" for text in part]
            (folder / name / shard).write_text("".join(lines))
            at = 0
            for text, line in zip(part, lines, strict=True):
                tokens[Address(name, shard, at)] = [*bytes_.encode([text]).values.tolist(), bytes_.eos_id]
                at += len(line)
        datasets.append(Dataset.from_path(name, str(folder / name)))
    mixture = StaticMixtureWorkSource(datasets, {"a": 2, "b": 1}, seed=3, exhausted_policy="redistribute", chunk_bytes=500)
    return mixture, tokens  # type: ignore[return-value]


def tokens_of(batch: SampleBatch, row: int) -> list[int]:
    if "packed_samples" in batch.fields:
        return np.concatenate([sample["input_ids"] for sample in batch.fields["packed_samples"][row]]).tolist()  # type: ignore[no-any-return]
    return [int(token) for token in batch.fields["input_ids"][row][: batch.used[row]]]


BUILDS: dict[str, Any] = {
    "wrap": lambda p: p.pack_flat(48),
    "wrap, shuffled": lambda p: p.pack_flat(48).shuffle(5),
    "wrap by dataset": lambda p: p.pack_flat(48, homogeneity="full"),
    "shuffled, wrap": lambda p: p.shuffle(6).pack_flat(48),
    "mixture ensured": lambda p: p.ensure_mixture(max_buffer_size=8).pack_flat(48),
    "best_fit": lambda p: p.pack_flat(100, algorithm="best_fit", drop_oversized=True),
    "best_fit_wrap": lambda p: p.pack_flat(48, algorithm="best_fit_wrap").shuffle(4),
    "rows mapped": lambda p: p.pack_flat(48).map_transform(dict),
    "sequences": lambda p: p.pack_sequences(48, algorithm="best_fit_wrap").shuffle(3),
    "documents": lambda p: p.shuffle(3),
}


@pytest.mark.parametrize(("how", "isolated"), [*((how, False) for how in BUILDS), ("wrap, shuffled", True)])
def test_the_tokens_of_a_span_are_those_of_its_document(tmp_path: Path, how: str, isolated: bool) -> None:
    mixture, expected = source(tmp_path)
    pipeline = Pipeline(mixture).options(isolated=isolated).tokenize(tokenizer_id="bytes", field="text", special_tokens="eos")
    seen: dict[Address, list[tuple[int, int]]] = {}
    for batch in BUILDS[how](pipeline).batch(3, drop_last=False):
        documents = batch.documents()
        assert len(documents) == batch.real_rows
        for row, spans in enumerate(documents):
            tokens = tokens_of(batch, row)
            assert [span.start for span in spans] == [0, *(span.stop for span in spans[:-1])]
            assert spans[-1].stop == len(tokens)
            for span in spans:
                last = span.offset + span.stop - span.start
                assert tokens[span.start : span.stop] == expected[span.address][span.offset : last], span
                seen.setdefault(span.address, []).append((span.offset, last))
    # Each token is once in the data: what does not fit into a row is in another one.
    assert {address: _end(parts) for address, parts in seen.items()} == {
        address: len(tokens) for address, tokens in expected.items() if how != "best_fit" or len(tokens) <= 100
    }


def _end(parts: list[tuple[int, int]]) -> int:
    at = 0
    for first, last in sorted(parts):
        assert first == at
        at = last
    return at


def test_a_span_says_where_its_document_is(tmp_path: Path) -> None:
    mixture, _ = source(tmp_path)
    built = Pipeline(mixture).tokenize(tokenizer_id="bytes", field="text").pack_flat(16).batch(2)
    for batch in built:
        for span in (span for spans in batch.documents() for span in spans):
            assert (span.dataset, span.shard, span.row) == tuple(span.address)
            assert str(span).startswith(f"tokens {span.start} to {span.stop}: dataset '{span.dataset}', shard ")
    assert str(DocumentSpan(Address("d", "s", 7), 0, 4, 1200)).endswith("row 7, from its token 1,200 on")


def test_rows_without_weight_have_no_documents_and_batches_by_hand_say_so() -> None:
    pipeline = recipe(PIPELINES["wrap"])(dp_degree=3, dp_group_id=2, lanes_allow="uneven")
    batches = [batch for batch, _ in zip(pipeline, range(20), strict=False)]
    pipeline.close()
    assert [len(batch.documents()) for batch in batches] == [batch.real_rows for batch in batches]
    batches[0].address = None
    with pytest.raises(ValueError, match="made by hand"):
        batches[0].documents()
