"""to_training with every option against a slow reference that goes token by token."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon import Dataset, InMemoryShard, Pipeline, SampleBatch, StaticMixtureWorkSource
from zephon.cursor import RankState
from zephon.types import Ragged

EOS = 9


def batch_of(rows: list[list[list[int]]], length: int, *, real: int | None = None, masked: bool = False) -> SampleBatch:
    """A batch of packed rows, each given as its segments."""
    n = len(rows)
    ids = np.zeros((n, length), np.uint32)
    used = np.array([sum(map(len, row)) for row in rows], np.int64)
    starts = []
    for i, row in enumerate(rows):
        flat = [token for segment in row for token in segment]
        ids[i, : len(flat)] = flat
        starts.append(np.cumsum([0, *map(len, row[:-1])]) if row else np.zeros(1, np.int64))
    fields: dict[str, Any] = {"input_ids": ids, "score": np.arange(n * length, dtype=np.float32).reshape(n, length)}
    if masked:
        fields["loss_mask"] = ((np.arange(n * length) % 3) > 0).astype(np.uint8).reshape(n, length)
    return SampleBatch(
        fields=fields,
        starts=Ragged.of(starts, np.int32),
        used=used,
        step=0,
        microbatch=(0, 1),
        real_rows=n if real is None else real,
        slots=np.arange(n if real is None else real),
        tokens={},
        state=RankState(0, 0, {}),
    )


def slow(
    rows: list[list[list[int]]], length: int, real: int, masked: bool, eos: bool, documents: bool
) -> dict[str, list[list[int]]]:
    """Inputs, labels, positions and padding, written down token by token."""
    out: dict[str, list[list[int]]] = {"input_ids": [], "labels": [], "positions": [], "padding_mask": []}
    for i, row in enumerate(rows):
        tokens, places = [], []
        for segment in row:
            tokens += segment
            places += range(len(segment))
        pad = length - len(tokens)
        mask = [int((i * length + j) % 3 > 0) for j in range(length)] if masked else [1] * length
        labels = []
        firsts = set(itertools.accumulate(map(len, row)))
        for j in range(length - 1):
            counts = j + 1 < len(tokens) and i < real and mask[j + 1] and not (eos and tokens[j] == EOS)
            counts = counts and not (documents and j + 1 in firsts)
            labels.append(tokens[j + 1] if counts else -100)
        out["input_ids"].append([*tokens, *[0] * pad][:-1])
        out["labels"].append(labels)
        out["positions"].append([*places, *range(pad)][:-1])
        out["padding_mask"].append([j >= len(tokens) or i >= real for j in range(length - 1)])
    return out


segment = st.lists(st.integers(1, 9), min_size=1, max_size=5)


@settings(max_examples=80, deadline=None)
@given(
    rows=st.lists(st.lists(segment, min_size=1, max_size=3), min_size=1, max_size=4),
    spare=st.integers(0, 4),
    missing=st.integers(0, 1),
    masked=st.booleans(),
    eos=st.booleans(),
    documents=st.booleans(),
    flatten=st.booleans(),
)
def test_everything_that_training_asks_for_is_what_going_token_by_token_gives(
    rows: list[list[list[int]]], spare: int, missing: int, masked: bool, eos: bool, documents: bool, flatten: bool
) -> None:
    length = max(2, max(sum(map(len, row)) for row in rows) + spare)
    real = len(rows) - missing
    batch = batch_of(rows, length, real=real, masked=masked)
    got = batch.to_training(
        return_labels=True,
        return_num_valid_tokens=True,
        return_loss_mask=True,
        return_cu_seqlens=True,
        return_padding_mask=True,
        eos_mask_loss=eos,
        eos_token_id=EOS,
        document_mask_loss=documents,
        extra_fields=["score"],
        flatten=flatten,
    )
    expected = slow(rows, length, real, masked, eos, documents)
    for name, value in expected.items():
        flat = [list(itertools.chain.from_iterable(value))] if flatten else value
        assert got[name].tolist() == flat, name
    assert got["num_valid_tokens"] == sum(label != -100 for row in expected["labels"] for label in row)
    assert got["loss_mask"].dtype == torch.float32
    assert (got["loss_mask"] == (got["labels"] != -100)).all()
    zeros = [i for i, place in enumerate(itertools.chain.from_iterable(expected["positions"])) if place == 0]
    edges = [*zeros, len(rows) * (length - 1)]
    assert got["cu_seqlens"].tolist() == edges
    assert got["cu_seqlens"].dtype == torch.int32
    assert got["max_seqlen"] == max(b - a for a, b in itertools.pairwise(edges))
    assert got["score"].shape == got["input_ids"].shape
    assert got["input_ids"].dtype == got["labels"].dtype == torch.int64


def test_without_labels_the_whole_row_is_the_input() -> None:
    got = batch_of([[[1, 2], [3]]], 4).to_training()
    assert sorted(got) == ["input_ids", "positions"]
    assert got["input_ids"].tolist() == [[1, 2, 3, 0]]
    assert got["positions"].tolist() == [[0, 1, 0, 0]]


def test_padding_is_masked_by_position_and_never_by_id() -> None:
    """A document may hold the padding's id."""
    batch = batch_of([[[1, 0, 2]]], 5)
    assert batch.to_training(return_labels=True)["labels"].tolist() == [[0, 2, -100, -100]]


def test_positions_run_through_the_row_when_asked() -> None:
    batch = batch_of([[[1, 2], [3]]], 4)
    got = batch.to_training(return_labels=True, position_mode="sequence", return_cu_seqlens=True)
    assert got["positions"].tolist() == [[0, 1, 2]]
    assert got["cu_seqlens"].tolist() == [0, 3]


def test_another_document_in_the_row_changes_nothing_of_a_document() -> None:
    one = batch_of([[[1, 2], [3, 4]]], 5).to_training(return_labels=True)
    other = batch_of([[[7, 8], [3, 4]]], 5).to_training(return_labels=True)
    for name in ("input_ids", "positions"):
        assert one[name][0, 2:].tolist() == other[name][0, 2:].tolist()
    assert one["labels"][0, 2:].tolist() == other["labels"][0, 2:].tolist()


def pairs_alone(rows: list[list[list[int]]]) -> list[tuple[int, int]]:
    """(input, label) of every document taken by itself, which is all that a model with masked attention can learn."""
    return [pair for row in rows for document in row for pair in itertools.pairwise(document)]


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(st.lists(segment, min_size=1, max_size=4), min_size=1, max_size=3))
def test_labels_never_cross_documents_where_attention_does_not(rows: list[list[list[int]]]) -> None:
    length = max(2, 1 + max(sum(map(len, row)) for row in rows))
    got = batch_of(rows, length).to_training(return_labels=True, document_mask_loss=True)
    trained = got["labels"] != -100
    assert list(zip(got["input_ids"][trained].tolist(), got["labels"][trained].tolist(), strict=True)) == pairs_alone(rows)


def test_labels_never_cross_documents_of_rows_that_were_stored_packed() -> None:
    packed = batch_of([[[1, 2], [3, 4, 5]]], 5)
    stored = SampleBatch(**{**vars_of(packed), "starts": None, "fields": {**packed.fields, "positions": packed.positions()}})
    assert stored.to_training(return_labels=True, document_mask_loss=True)["labels"].tolist() == [[2, -100, 4, 5]]
    short = SampleBatch(**{**vars_of(packed), "starts": None, "fields": {**packed.fields, "positions": np.zeros((1, 3))}})
    with pytest.raises(ValueError, match=r"positions have shape \(1, 3\)"):
        short.to_training(return_labels=True, document_mask_loss=True)


def test_the_first_token_of_each_document_can_be_found() -> None:
    batch = batch_of([[[1, 2, 3], [4, 5]]], 5)
    got = batch.to_training(return_cu_seqlens=True)
    assert got["positions"].tolist() == [[0, 1, 2, 0, 1]]
    assert got["cu_seqlens"].tolist() == [0, 3, 5]


def test_valid_tokens_are_counted_per_microbatch_so_that_the_loss_can_be_divided_by_the_sum() -> None:
    small, large = batch_of([[[1, 2]]], 10), batch_of([[[1] * 10]], 10)
    counts = [b.to_training(return_labels=True, return_num_valid_tokens=True)["num_valid_tokens"] for b in (small, large)]
    assert (counts, sum(counts)) == ([1, 9], 10)


@pytest.mark.parametrize(("dtype", "expected"), [("auto", torch.int64), (torch.int32, torch.int32), ("int32", torch.int32)])
def test_the_dtype_of_tokens_can_be_chosen(dtype: Any, expected: Any) -> None:
    got = batch_of([[[1, 2]]], 4).to_training(return_labels=True, dtype=dtype)
    assert got["input_ids"].dtype == got["labels"].dtype == expected
    assert got["positions"].dtype == torch.int32


def test_without_torch_the_same_comes_as_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of([[[1, 2], [3]]], 5)
    tensors = batch.to_training(return_labels=True, return_loss_mask=True, return_cu_seqlens=True)
    monkeypatch.setitem(sys.modules, "torch", None)
    arrays = batch.to_training(return_labels=True, return_loss_mask=True, return_cu_seqlens=True)
    assert sorted(arrays) == sorted(tensors)
    for name, value in arrays.items():
        if name != "max_seqlen":
            assert isinstance(value, np.ndarray)
            assert (value.dtype, value.tolist()) == (tensors[name].numpy().dtype, tensors[name].tolist())


def test_extra_fields_that_are_text_come_as_lists() -> None:
    batch = batch_of([[[1]], [[2]]], 3)
    named = np.array(["a", None], object)
    more = SampleBatch(**{**vars_of(batch), "fields": {**batch.fields, "name": named, "tags": [["x"], []]}})
    got = more.to_training(extra_fields=["name", "tags"])
    assert (got["name"], got["tags"]) == (["a", None], [["x"], []])


def test_fields_can_be_renamed_left_out_and_ignored_labels_marked_otherwise() -> None:
    batch = batch_of([[[1, 2]]], 4)
    got = batch.to_training(
        return_labels=True, rename_fields={"input_ids": "tokens"}, exclude_fields=["positions"], ignore_index=-1
    )
    assert sorted(got) == ["labels", "tokens"]
    assert got["labels"].tolist() == [[2, -1, -1]]
    swapped = batch.to_training(return_labels=True, rename_fields={"input_ids": "labels", "labels": "input_ids"})
    assert swapped["labels"].tolist() == [[1, 2, 0]]


def test_tokens_are_found_under_their_usual_names() -> None:
    batch = batch_of([[[1, 2]]], 3)
    renamed = SampleBatch(**{**vars_of(batch), "fields": {"tokens": batch.fields["input_ids"]}, "starts": None})
    assert renamed.to_training()["input_ids"].tolist() == [[1, 2, 0]]
    assert renamed.to_training(tokens_field="tokens")["input_ids"].tolist() == [[1, 2, 0]]


def vars_of(batch: SampleBatch) -> dict[str, Any]:
    return {name: getattr(batch, name) for name in batch.__dataclass_fields__}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"return_loss_mask": True}, "needs return_labels=True"),
        ({"return_num_valid_tokens": True}, "needs return_labels=True"),
        ({"eos_mask_loss": True, "eos_token_id": 1}, "needs return_labels=True"),
        ({"eos_mask_loss": True, "return_labels": True}, "needs eos_token_id"),
        ({"document_mask_loss": True}, "needs return_labels=True"),
        ({"position_mode": "row"}, "'preserve' or 'sequence'"),
        ({"tokens_field": "words"}, "no tokens under words"),
        ({"extra_fields": ["color"]}, "no field 'color'"),
        ({"rename_fields": {"color": "c"}}, "'color', which is not there"),
        ({"rename_fields": {"input_ids": "positions"}}, "would hide the field"),
        ({"rename_fields": {"input_ids": "x", "positions": "x"}}, "one name twice"),
    ],
)
def test_what_makes_no_sense_is_a_value_error(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        batch_of([[[1, 2]]], 4).to_training(**options)


def test_a_mask_of_another_shape_and_positions_that_do_not_start_at_0_are_errors() -> None:
    batch = batch_of([[[1, 2]]], 4)
    wrong = SampleBatch(**{**vars_of(batch), "fields": {**batch.fields, "loss_mask": np.ones((1, 3), np.uint8)}})
    with pytest.raises(ValueError, match=r"loss_mask has shape \(1, 3\)"):
        wrong.to_training(return_labels=True)
    shifted = SampleBatch(
        **{**vars_of(batch), "fields": {**batch.fields, "positions": np.array([[1, 2, 3, 4]])}, "starts": None}
    )
    with pytest.raises(ValueError, match="must start at 0"):
        shifted.to_training()


def test_documents_of_different_lengths_have_no_tensor() -> None:
    dataset = Dataset.from_dict("d", {"s": InMemoryShard([{"text": "a"}, {"text": "bcd"}])})
    pipeline = Pipeline(StaticMixtureWorkSource([dataset])).options(runner="inline", global_batch_size=2)
    (batch,) = pipeline.tokenize(tokenizer_id="bytes", field="text").batch(2)
    with pytest.raises(ValueError, match="pack or pad them"):
        batch.to_training()
    with pytest.raises(ValueError, match="use pack_flat"):
        batch.positions()


def stored(**columns: Any) -> SampleBatch:
    """A packed row of two documents, [1 2 3 4] and [5 6 7], and one place of padding, with columns beside the tokens."""
    batch = batch_of([[[1, 2, 3, 4], [5, 6, 7]]], 8)
    fields = {**batch.fields, **{name: np.array([column]) for name, column in columns.items()}}
    return SampleBatch(**{**vars_of(batch), "fields": fields})


def test_stored_weights_weigh_the_labels_or_are_refused() -> None:
    batch = stored(loss_mask=[1, 0.5, 0, 1, 0.25, 1, 0.5, 0.75])
    got = batch.to_training(return_labels=True, return_loss_mask=True, document_mask_loss=True)
    assert got["loss_mask"].tolist() == [[0.5, 0, 1, 0, 1, 0.5, 0]], "documents' ends and padding have none"
    assert got["loss_mask"].dtype == torch.float32
    assert got["labels"].tolist() == [[2, -100, 4, -100, 6, 7, -100]]
    with pytest.raises(ValueError, match="weights other than 0 and 1; ask for return_loss_mask=True"):
        batch.to_training(return_labels=True)
    assert stored(loss_mask=[True, False] * 4).to_training(return_labels=True)["labels"].tolist() == [
        [-100, 3, -100, 5, -100, 7, -100]
    ]


def test_stored_labels_are_what_is_learned_in_the_place_of_each_token() -> None:
    batch = stored(labels=[-100, -100, 33, 44, -100, 66, 77, -100])
    got = batch.to_training(return_labels=True, return_num_valid_tokens=True, ignore_index=-1)
    assert got["labels"].tolist() == [[-1, 33, 44, -1, 66, 77, -1]]
    assert (got["num_valid_tokens"], got["input_ids"].tolist()) == (4, [[1, 2, 3, 4, 5, 6, 7]])
    with pytest.raises(ValueError, match=r"labels has shape \(1, 3\)"):
        stored(labels=[1, 2, 3]).to_training(return_labels=True)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=9), st.integers(0, 10**6))
def test_labels_of_a_packed_row_are_those_of_its_documents_taken_one_by_one(lengths: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    documents = [random.integers(0, 50, length).tolist() for length in lengths]
    mask = random.integers(0, 5, sum(lengths)) / 4
    row = batch_of([documents], sum(lengths))
    row = SampleBatch(**{**vars_of(row), "fields": {**row.fields, "loss_mask": mask[None]}})
    got = row.to_training(return_labels=True, return_loss_mask=True, document_mask_loss=True)
    pairs = {}
    for begin, document in zip(np.cumsum([0, *lengths[:-1]]).tolist(), documents, strict=True):
        for place in range(len(document) - 1):  # each document alone: its token, the next one, and that one's weight
            if weight := mask[begin + place + 1]:
                pairs[begin + place] = (document[place], document[place + 1], weight)
    trained = {i: (got["input_ids"][0, i], got["labels"][0, i], got["loss_mask"][0, i]) for i in range(sum(lengths) - 1)}
    assert {i: found for i, found in trained.items() if found[1] != -100} == pairs
