"""Exclusions: when a skip rule comes into force, and which documents in quarantine a cursor names."""

from __future__ import annotations

import pytest

from tests.engine.parts import documents, program
from zephon.cursor import Cursor, QuarantinedId, SkipRule
from zephon.engine.exclusions import Exclusions
from zephon.errors import DataError
from zephon.ops.quarantine import QuarantinePolicy
from zephon.types import Columns


def exclusions(cursor: Cursor, budget: int = 10) -> Exclusions:
    quarantine = QuarantinePolicy(datasets=(True,), budget=budget)
    return Exclusions(0, program([["a"]] * 20, quarantine=quarantine), cursor)


def failed(*ids: tuple[int, int]) -> Columns:
    columns = documents("a", "b", "c")
    columns.quarantined = list(ids)
    return columns


def rows(columns: Columns) -> list[int]:
    return columns.row.tolist()


RULE = SkipRule(4, 3, ((0, 0, 1),))


def test_a_rule_comes_into_force_when_its_interval_has_made_so_many_sequences() -> None:
    excluding = exclusions(Cursor(4, skip_rules=(RULE,)))
    assert excluding.skipping
    assert rows(excluding.apply(documents("a", "b", "c"), 4, emitted=2)) == [0, 1, 2]
    kept = excluding.apply(documents("a", "b", "c"), 5, emitted=3)
    assert rows(kept) == [0, 2]
    assert [(some.reason, some.row.tolist()) for some in kept.dropped] == [("skip: document", [1])]
    assert excluding.noted_in(Cursor(4)).skip_rules == (SkipRule(5, 0, RULE.documents),)


def test_a_rule_comes_into_force_with_the_next_interval_at_the_latest() -> None:
    excluding = exclusions(Cursor(4, skip_rules=(RULE,)))
    excluding.begin(8, lambda _: True)
    assert rows(excluding.apply(documents("a", "b", "c"), 8, emitted=0)) == [0, 2]


def test_a_rule_in_force_spares_the_chunks_before_it_that_a_replay_meets() -> None:
    excluding = exclusions(Cursor(6, 2, 5, skip_rules=(SkipRule(5, 0, RULE.documents),)))
    assert rows(excluding.apply(documents("a", "b", "c"), 4, emitted=None)) == [0, 1, 2]
    assert rows(excluding.apply(documents("a", "b", "c"), 5, emitted=None)) == [0, 2]


def test_a_document_of_another_dataset_with_the_same_row_stays() -> None:
    excluding = exclusions(Cursor(skip_rules=(SkipRule(0, 0, ((1, 0, 1),)),)))
    assert rows(excluding.apply(documents("a", "b", "c"), 0, emitted=0)) == [0, 1, 2]


def test_new_failures_are_counted_and_named_until_no_replay_meets_them() -> None:
    excluding = exclusions(Cursor())
    excluding.apply(failed((0, 7)), 1, emitted=0)
    noted = excluding.noted_in(Cursor())
    assert (noted.quarantined, noted.quarantined_ids) == (1, (QuarantinedId(1, 0, 7),))
    excluding.begin(2, lambda position: position >= 2)
    noted = excluding.noted_in(Cursor(2))
    assert (noted.quarantined, noted.quarantined_ids) == (1, ())


def test_a_replay_gives_the_workers_the_known_ones_and_counts_them_once() -> None:
    cursor = Cursor(2, 1, 5, 3, quarantined=4, quarantined_ids=(QuarantinedId(1, 0, 7), QuarantinedId(2, 0, 0)))
    excluding = exclusions(cursor)
    assert [list(excluding.known(position)) for position in (0, 1, 2)] == [[], [(0, 7)], [(0, 0)]]
    excluding.apply(failed((0, 7)), 1, emitted=None)
    excluding.apply(failed((0, 0)), 2, emitted=0)
    assert excluding.noted_in(cursor) == cursor


@pytest.mark.parametrize("emitted", [None, 0, 2])
def test_a_failure_of_what_was_delivered_before_is_an_error_with_its_address(emitted: int | None) -> None:
    with pytest.raises(DataError, match=r"fails now: dataset 'd', shard 's', row 0"):
        exclusions(Cursor(delivered=3)).apply(failed((0, 0)), 0, emitted)


def test_more_failures_than_the_budget_end_the_run() -> None:
    excluding = exclusions(Cursor(), budget=2)
    excluding.apply(failed((0, 0), (0, 1)), 0, emitted=0)
    with pytest.raises(DataError, match="more than quarantine_budget=2 documents"):
        excluding.apply(failed((0, 2)), 1, emitted=0)
