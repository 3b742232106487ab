"""What a cursor carries beside its five numbers, and that a plain one pays nothing for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon.cursor import Cursor, QuarantinedId, SkipRule
from zephon.errors import StateError

number = st.integers(0, 2**45)


@st.composite
def cursors(draw: st.DrawFn) -> Cursor:
    position, back = draw(number) + 1000, draw(st.integers(0, 1000))
    bad = [QuarantinedId(position - back + draw(st.integers(0, 50)), draw(st.integers(0, 9)), draw(number)) for _ in range(3)]
    documents = tuple((draw(number), draw(number), draw(number)) for _ in range(draw(st.integers(1, 3))))
    return Cursor(
        position,
        back,
        draw(number),
        draw(number),
        tuple(draw(st.lists(number, max_size=4))),
        carried_by_group=draw(st.sampled_from([(), ((0, 0), (3, 700))])),
        quarantined=(quarantined := draw(st.sampled_from([0, 5]))),
        quarantined_ids=tuple(bad) if quarantined else (),
        skipped_steps=draw(st.sampled_from([(), ((100, 7), (300, 1))])),
        skip_rules=draw(st.sampled_from([(), (SkipRule(position, 3, documents), SkipRule(position + 1, 0, documents))])),
    )


@given(cursors())
def test_every_cursor_survives_its_encoding(cursor: Cursor) -> None:
    assert Cursor.decode(cursor.encode()) == cursor


def test_a_plain_cursor_is_the_five_numbers_and_nothing_more() -> None:
    assert Cursor(1, 0, 0, 2, (3,)).encode() == bytes([1, 0, 0, 2, 1, 3])


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_cursor_that_lost_its_end_is_refused_or_is_one_that_never_had_it(cut: int) -> None:
    ids, rules = (QuarantinedId(299, 0, 12345),), (SkipRule(3, 0, ((0, 1, 2),)),)
    whole = Cursor(300, 2, 55, 7, (1, 2), ((2, 50), (1, 5)), 3, ids, ((100, 5),), rules)
    shorter = decoded(whole.encode()[:-cut])
    assert shorter is None or shorter.encode() == whole.encode()[:-cut]


def decoded(data: bytes) -> Cursor | None:
    try:
        return Cursor.decode(data)
    except StateError:
        return None


def test_ordinary_use_stays_far_under_the_limit() -> None:
    """Eight groups, three documents in quarantine, a step range to skip, 8 datasets with 10**12 tokens each."""
    ids = (QuarantinedId(10**7 - 3, 1, 10**6),) * 3
    cursor = Cursor(10**7, 40, 16000, 900, (10**12,) * 8, ((4, 2000),) * 8, 3, ids, ((10**6, 50),))
    assert len(cursor.encode()) < 128
