"""What ranks agree on before they train a step."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.train.synthetic import SyntheticFeed, spec
from zephon.errors import DataError, StateError
from zephon.train.step import RankReport, agree, concatenate, rank_report


def batches(size: int, step: int = 0, **changes):
    some = spec(lanes__allow="uneven", **changes)
    return [SyntheticFeed(some, rank, size).batch(step) for rank in range(size)]


def reports(found):
    return [rank_report(one, drain=False, error=None) for one in found]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16])
def test_all_sizes_agree_on_the_same_step(size):
    found = batches(size)
    steps = [agree(one, reports(found)) for one in found]
    (alone,) = batches(1)
    for step in steps:
        assert (step.step, step.tokens) == (0, alone.rows.tokens)
        assert step.digests == [alone.digests[slot] for slot in range(16)]
        assert sorted(step.state["lanes"]) == list(range(8))
    assert {len(step.rows) for step in steps} == {-(-16 // size)}


def test_padding_rows_train_nothing():
    rows = batches(1)[0].rows
    wide = rows.padded(20)
    assert (len(wide), wide.tokens) == (20, rows.tokens)
    assert torch.equal(wide.input_ids[:16], rows.input_ids)


def test_cut_rows_joined_again_are_the_rows():
    rows = batches(1)[0].rows
    again = concatenate(rows.split(5))
    assert all(torch.equal(getattr(again, name), getattr(rows, name)) for name in ("input_ids", "labels", "positions"))


def test_the_first_ranks_error_is_raised_with_its_rank():
    error = DataError("bad", follows="x", remedy="y")
    mine = [*reports(batches(2)), rank_report(None, drain=False, error=error)]
    with pytest.raises(DataError) as caught:
        agree(None, mine)
    assert caught.value.__notes__ == ["raised on data-parallel rank 2"]


def test_data_ends_where_it_ends_for_the_first_rank():
    assert agree(None, [RankReport(step=None)] * 2) is None
    found = batches(2)
    assert agree(found[0], [reports(found)[0], RankReport(step=None)]) is None


def test_ranks_at_different_steps_or_with_doubled_slots_are_refused():
    first, second = batches(2)
    with pytest.raises(StateError, match=r"steps \[0, 1\]"):
        agree(first, reports([first, replace(second, step=1)]))
    with pytest.raises(StateError, match="train some rows twice or not at all"):
        agree(first, reports([first, first]))


def test_one_rank_that_must_leave_drains_all():
    found = batches(2)
    mine = [rank_report(found[0], drain=False, error=None), rank_report(found[1], drain=True, error=None)]
    assert all(agree(one, mine).drain for one in found)
