"""Whenever documents are dropped, a warning says how many, which share and what to set."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest

from zephon import Dataset, InMemoryShard, Pipeline, StaticMixtureWorkSource
from zephon.pipeline.drops import DropWarning


def pipeline(lengths: list[int], **options: Any) -> Pipeline:
    """Documents of so many tokens, in order, one row a step."""
    rows = [{"input_ids": [1] * length, "n": i} for i, length in enumerate(lengths)]
    source = StaticMixtureWorkSource(
        [Dataset.from_dict("d", {"s": InMemoryShard(rows)})], shuffle_shards=False, shuffle_within_shard=False, chunk_bytes=64
    )
    return Pipeline(source).options(max_workers=0, **options)


def said(built: Pipeline) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(built)
    return [str(warning.message) for warning in caught if warning.category is DropWarning]


def test_documents_that_packing_drops_are_warned_of_while_it_happens_and_in_all_at_the_end() -> None:
    first, end = said(pipeline([4, 9, 4, 4, 9, 9, 9, 4] * 8).pack_flat(8, algorithm="first_fit").batch(1))
    assert first.startswith("pack_flat: longer than max_length: ")
    assert "documents dropped so far" in first
    assert "the first of dataset 'd', shard 's', row 1" in first
    assert 'algorithm="wrap" or "best_fit_wrap"' in first
    assert "32 documents dropped in all (50.0% of those read), 288 tokens (69.2%)" in end


def test_each_reason_is_warned_of_once_however_often_the_loop_begins_again() -> None:
    built = pipeline([4, 9] * 32).pack_flat(8, algorithm="first_fit").batch(1)
    with pytest.warns(DropWarning, match="longer than max_length") as caught:
        list(itertools.islice(built, 3))
    assert len(caught) == 1
    assert len(said(built)) == 1  # the end


def test_a_filter_of_the_users_own_is_said_too() -> None:
    (first, end) = said(
        pipeline([4] * 40).map_transform(lambda d: d if d["n"] % 4 else None, version="1").pack_flat(8).batch(1)
    )
    assert first.startswith("map_transform: None: ")
    assert "10 documents dropped in all (25.0% of those read)" in end


@pytest.mark.parametrize("isolated", [False, True])
def test_what_lies_after_the_last_full_step_is_told_once_at_the_end_of_a_loop(isolated: bool) -> None:
    """E7: 30 rows in steps of eight leave six rows; a document after the last row is told as well."""
    built = pipeline([4] * 60 + [9]).pack_flat(8, algorithm="wrap", drop_oversized=True).batch(8)
    built.options(global_batch_size=8, max_workers=1, isolated=isolated)
    told = said(built)
    assert len(told) == 2
    assert [text for text in told if text.startswith("after the last")] == [
        "after the last full step: 6 sequences dropped, 48 tokens (20.0%); to keep them: use batch(drop_last=False), or a "
        "smaller global batch"
    ]
    assert sum("longer than max_length" in text for text in told) == 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert list(built) == list(built) == []
    (again,) = [str(warning.message) for warning in caught]
    assert "used up: its data ended before step 3" in again


def test_a_state_from_the_end_says_that_the_data_is_used_up() -> None:
    def build() -> Pipeline:
        return pipeline([8] * 9).pack_flat(8).batch(2).options(global_batch_size=2)

    state = build()
    list(state)
    with pytest.warns(UserWarning, match="used up: its data ended before step 4"):
        assert list(build().restore(state.checkpoint())) == []


def test_nothing_is_said_where_nothing_is_dropped_or_where_it_was_asked_for() -> None:
    assert said(pipeline([4, 9] * 8).pack_flat(8).batch(1)) == []
    assert said(pipeline([8] * 8).pack_flat(8).batch(1).skip(documents=[("d", "s", 1)], steps=range(2, 3))) == []


def test_explain_says_what_packing_will_drop() -> None:
    text = pipeline([4, 9] * 8).pack_flat(8, algorithm="first_fit").batch(1).explain()
    assert "pack_flat drops documents longer than 8 tokens: of a sample" in text
    assert "drops documents" not in pipeline([4, 9] * 8).pack_flat(8).batch(1).explain()
