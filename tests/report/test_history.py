"""What the ledger says: legs, whether they agree, dropped documents."""

from __future__ import annotations

from typing import Any

from zephon.report.history import compared, history
from zephon.run.ledger import Entry


def line(step: int, attempt: int, digest: str = "", **rest: Any) -> Entry:
    return Entry(step, digest or f"{step:064x}", (), {"attempt": attempt, "generation": attempt, "world_size": 2, **rest})


def test_legs_that_trained_the_same_steps_agree_or_the_first_different_step_is_named() -> None:
    first = [line(step, 1) for step in range(5)]
    past = history([*first, *(line(step, 2) for step in range(3, 8))])
    assert [(leg.first, leg.last, leg.repeated, leg.differs) for leg in past.legs] == [(0, 4, 0, None), (3, 7, 2, None)]
    assert past.verdict().startswith("Equal: 2 steps")
    other = history([*first, line(3, 2), line(4, 2, digest="f" * 64)])
    assert other.legs[1].differs == other.differs == 4
    assert other.verdict().startswith("NOT EQUAL: step 4")
    assert "nothing to compare" in history(first).verdict()
    assert history([]).verdict() == "There is no ledger yet."


def test_two_runs_are_compared_over_the_steps_that_both_have() -> None:
    run = history(line(step, 1, loss=1.5) for step in range(5))
    assert compared(run, history(line(step, 1, loss=1.5) for step in range(3, 9))).startswith("Equal: all 2 common steps")
    assert "to the last bit" in compared(run, run)
    assert compared(run, history([line(2, 1, digest="f" * 64)])).startswith("NOT EQUAL: step 2 is the first of 1")
    assert compared(run, history([])) == "They have no step in common."


def test_tokens_and_dropped_documents_count_once_however_often_a_step_was_trained() -> None:
    dropped = {"quarantined: no text": {"count": 9, "first": [["web", "a.jsonl", 10 * i] for i in range(8)]}}
    past = history(line(1, attempt, tokens={"web": 7, "code": 1}, dropped=dropped) for attempt in (1, 2))
    assert past.tokens == {"web": 7, "code": 1}
    (drop,) = past.drops
    assert (drop.reason, drop.count, drop.named, len(drop.addresses)) == ("quarantined: no text", 9, {"web": 8}, 8)
    assert drop.addresses[1] == ("web", "a.jsonl", 10)
