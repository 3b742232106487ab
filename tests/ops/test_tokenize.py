"""tokenize: every option, against the plain encoding of each document."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon import Dataset, InMemoryShard, Pipeline, SampleBatch, StaticMixtureWorkSource
from zephon.errors import ConfigError, DataError
from zephon.ops.tokenizers import Tokenizer, load_tokenizer

BOS, EOS = 256, 257


def pipeline_of(rows: list[dict[str, Any]]) -> Pipeline:
    dataset = Dataset.from_dict("d", {"s": InMemoryShard(rows)})
    source = StaticMixtureWorkSource([dataset], shuffle_within_shard=False, shuffle_shards=False, chunk_bytes=50)
    return Pipeline(source).options(runner="inline", prefetch_batches=0, global_batch_size=1)


def run(texts: list[str], **options: Any) -> list[list[int]]:
    pipeline = pipeline_of([{"text": text} for text in texts])
    tokenizer = {} if "tokenizer" in options else {"tokenizer_id": options.pop("tokenizer_id", "bytes")}
    pipeline.tokenize(**{"special_tokens": "bos_eos", **tokenizer, **options}, field="text")
    return [list(map(int, batch.payload["input_ids"][0])) for batch in pipeline.batch(1)]


def one(row: dict[str, Any], **options: Any) -> SampleBatch:
    (batch,) = pipeline_of([row]).tokenize(tokenizer_id="bytes", **options).batch(1)
    return batch


@pytest.mark.parametrize(
    ("special", "expected"),
    [
        ("bos_eos", [BOS, 97, 98, EOS]),
        ("bos", [BOS, 97, 98]),
        ("eos", [97, 98, EOS]),
        ("none", [97, 98]),
        ("tokenizer_default", [BOS, 97, 98, EOS]),
    ],
)
def test_special_tokens_go_where_they_are_asked_for(special: str, expected: list[int]) -> None:
    assert run(["ab"], special_tokens=special) == [expected]


def test_the_users_own_special_tokens_win() -> None:
    assert run(["a"], bos_token_id=1, eos_token_id=2) == [[1, 97, 2]]


def test_a_tokenizer_without_bos_is_refused_under_bos_eos_before_any_data_is_read() -> None:
    plain = Tokenizer("plain", "x" * 64, 256, None, None, "", "bytes")
    with pytest.raises(ConfigError, match="has no BOS token"):
        run(["a"], tokenizer=plain)
    assert run(["a"], tokenizer=plain, special_tokens="none") == [[97]]
    assert run(["a"], tokenizer=plain, special_tokens="tokenizer_default") == [[97]]
    assert run(["a"], tokenizer=plain, special_tokens="eos", eos_token_id=9) == [[97, 9]]


def test_the_spelling_of_a_special_token_in_a_document_is_ordinary_text() -> None:
    (ids,) = run(["a<|endoftext|>b"], tokenizer_id="gpt2", special_tokens="none")
    assert 50256 not in ids
    assert len(ids) > 4


texts = st.lists(st.text("abc ", max_size=20), min_size=1, max_size=12)


@settings(max_examples=40, deadline=None)
@given(texts=texts, length=st.integers(3, 9), special=st.sampled_from(["bos_eos", "bos", "eos", "none"]))
def test_truncation_keeps_the_beginning_and_the_special_tokens(texts: list[str], length: int, special: str) -> None:
    bos, eos = "bos" in special, "eos" in special
    room = length - bos - eos
    expected = [[BOS] * bos + list(t.encode()[:room]) + [EOS] * eos for t in texts]
    assert run(texts, max_length=length, truncation=True, special_tokens=special) == expected


@settings(max_examples=40, deadline=None)
@given(texts=texts, length=st.integers(3, 9), special=st.sampled_from(["bos_eos", "bos", "eos", "none"]))
def test_splitting_cuts_the_whole_document_with_bos_on_the_first_and_eos_on_the_last_piece(
    texts: list[str], length: int, special: str
) -> None:
    bos, eos = "bos" in special, "eos" in special
    expected = []
    for text in texts:
        whole = [BOS] * bos + list(text.encode()) + [EOS] * eos
        expected += [whole[i : i + length] for i in range(0, len(whole), length)] or [[]]
    assert run(texts, max_length=length, split_long_samples=True, special_tokens=special) == expected


def test_pieces_are_numbered() -> None:
    pipeline = pipeline_of([{"text": "abcdefgh"}]).tokenize(
        tokenizer_id="bytes", field="text", split_long_samples=True, max_length=4, preserve_upstream_payload=True
    )
    assert [int(batch.payload["piece"][0]) for batch in pipeline.batch(1)] == [0, 1, 2]


def test_padding_makes_rows_of_one_length_with_a_mask_that_training_understands() -> None:
    pipeline = pipeline_of([{"text": t} for t in ("a", "abcdef", "")])
    pipeline.tokenize(tokenizer_id="bytes", field="text", special_tokens="bos_eos", padding=True, truncation=True, max_length=5)
    batches = list(pipeline.batch(1))
    assert [np.asarray(b.payload["input_ids"]).tolist() for b in batches] == [
        [[BOS, 97, EOS, EOS, EOS]],
        [[BOS, 97, 98, 99, EOS]],
        [[BOS, EOS, EOS, EOS, EOS]],
    ]
    assert [np.asarray(b.payload["attention_mask"]).sum() for b in batches] == [3, 5, 2]
    assert [b.used.tolist() for b in batches] == [[3], [5], [2]]
    assert batches[0].to_training(return_labels=True)["labels"].tolist() == [[97, EOS, -100, -100]]


def test_the_mask_can_be_left_out() -> None:
    batch = one({"text": "a"}, field="text", padding=True, max_length=5, add_attention_mask=False)
    assert "attention_mask" not in batch.payload


def test_padding_before_packing_is_refused() -> None:
    pipeline = pipeline_of([{"text": "a"}]).tokenize(tokenizer_id="bytes", field="text", padding=True, max_length=5)
    with pytest.raises(ConfigError, match="packing needs none"):
        pipeline.pack_flat(8).batch(1).describe()


def test_other_fields_are_kept_only_when_asked_for() -> None:
    assert set(one({"text": "a", "id": 3}, field="text").payload) == {"input_ids"}
    kept = one({"text": "a", "id": 3}, field="text", preserve_upstream_payload=True)
    assert kept.payload["id"] == [3]


def test_a_dotted_field_goes_inward_and_a_field_with_a_dot_in_its_name_is_found_first() -> None:
    assert one({"meta": {"body": "x"}}, field="meta.body").payload["input_ids"][0].tolist() == [120, EOS]
    assert one({"a.b": "y", "a": {"b": "x"}}, field="a.b").payload["input_ids"][0].tolist() == [121, EOS]


def test_a_missing_field_is_an_error_with_address_and_names_or_left_out_and_counted() -> None:
    rows: list[dict[str, Any]] = [{"text": "a"}, {"body": "b"}, {"text": "c"}]
    with pytest.raises(DataError, match=r"no field 'text'; it has \['body'\]") as caught:
        list(pipeline_of(rows).tokenize(tokenizer_id="bytes", field="text").batch(1))
    assert "row 1" in "".join(caught.value.__notes__)
    batches = list(pipeline_of(rows).tokenize(tokenizer_id="bytes", field="text", missing_field="skip").batch(1))
    assert len(batches) == 2
    assert [a.row for b in batches for left in b.dropped for a in left.addresses] == [1]


@pytest.mark.parametrize(("value", "why"), [(3, "holds int '3', not text"), (b"x", "not text"), ("\ud800", "UTF-8")])
def test_what_is_not_text_is_an_error_with_the_address(value: Any, why: str) -> None:
    for tokenizer in ("bytes", "gpt2"):
        if tokenizer == "bytes" and value == "\ud800":
            continue  # the byte tokenizer writes lone surrogates as they are
        with pytest.raises(DataError, match=why) as caught:
            list(pipeline_of([{"text": "a"}, {"text": value}]).tokenize(tokenizer_id=tokenizer, field="text").batch(1))
        assert "row 1" in "".join(caught.value.__notes__)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"special_tokens": "bos_and_eos"}, "did you mean 'bos_eos'"),
        ({"missing_field": "ignore"}, "missing_field='ignore'"),
        ({"truncation": True}, "truncation without max_length"),
        ({"padding": True}, "padding without max_length"),
        ({"truncation": True, "split_long_samples": True, "max_length": 9}, "choose one"),
        ({"max_length": 2}, "leaves no room"),
        ({"on_error": "skip"}, "on_error='skip'"),
        ({"trunctation": True}, "did you mean 'truncation'"),
    ],
)
def test_what_cannot_work_is_refused_before_any_data_is_read(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        run(["a"], **options)


def test_exactly_one_tokenizer_is_needed() -> None:
    for given_ones in ({}, {"tokenizer": load_tokenizer("bytes"), "tokenizer_id": "bytes"}):
        with pytest.raises(ConfigError, match="exactly one"):
            pipeline_of([{"text": "a"}]).tokenize(field="text", **given_ones)  # type: ignore[arg-type]


def test_lengths_that_are_counted_are_tokens_that_are_written() -> None:
    """EOD put in after counting would make the sums differ."""
    pipeline = pipeline_of([{"text": t} for t in ("a", "bc", "")]).tokenize(
        tokenizer_id="bytes", field="text", special_tokens="eos"
    )
    batches = list(pipeline.batch(1))
    assert [batch.tokens["d"] for batch in batches] == [2, 3, 1] == [len(b.payload["input_ids"][0]) for b in batches]


def test_a_gpt2_document_ends_in_one_end_of_text_id_and_begins_with_none() -> None:
    pipeline = pipeline_of([{"text": "Hello world"}, {"text": "Hello"}]).tokenize(tokenizer_id="gpt2", field="text")
    assert [b.payload["input_ids"][0].tolist() for b in pipeline.batch(1)] == [[15496, 995, 50256], [15496, 50256]]
