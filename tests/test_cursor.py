from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon.cursor import Cursor, differences, merge_states, refuse_other_stream
from zephon.errors import StateError

numbers = st.integers(0, 2**62)
cursors = st.tuples(numbers, numbers, numbers, numbers, st.lists(numbers, max_size=6).map(tuple)).map(
    lambda five: Cursor(*five)
)


@given(cursors)
def test_a_cursor_survives_its_bytes(cursor: Cursor) -> None:
    assert Cursor.decode(cursor.encode()) == cursor


def test_a_cursor_of_a_long_run_is_small() -> None:
    far = Cursor(position=10**9, carried_chunks=3, carried_tokens=2047, delivered=100_000, tokens=(10**13,) * 8)
    assert len(far.encode()) <= 128


@pytest.mark.parametrize("damaged", [b"", b"\x80", b"\x01\x02", Cursor(5, 0, 0, 1, (7, 7)).encode()[:-1], b"\xff" * 30])
def test_damaged_bytes_are_refused_and_name_the_lane(damaged: bytes) -> None:
    with pytest.raises(StateError, match="lane 4 is damaged"):
        Cursor.decode(damaged, lane=4)


def test_a_difference_names_every_field_with_both_values() -> None:
    assert differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 3, "c": 2}, "d": 4}) == [("a.b", 1, 3), ("d", None, 4)]
    with pytest.raises(StateError) as caught:
        refuse_other_stream({"source": {"seed": 1}}, {"source": {"seed": 2}})
    assert "source.seed: saved 1, now 2" in str(caught.value)


def state(step: int, lanes: dict[int, bytes], microbatch: int = 0) -> dict[str, object]:
    return {"version": 1, "stream": json.dumps({"s": 1}), "step": step, "microbatch": microbatch, "lanes": lanes}


def test_states_of_all_ranks_become_one() -> None:
    merged = merge_states([state(3, {0: b"a"}), state(3, {1: b"b"})])
    assert merged["lanes"] == {0: b"a", 1: b"b"}
    assert merged["step"] == 3


def test_torn_states_are_refused() -> None:
    with pytest.raises(StateError, match="torn"):
        merge_states([state(3, {0: b"a"}), state(4, {1: b"b"})])
    with pytest.raises(StateError, match="different cursors"):
        merge_states([state(3, {0: b"a"}), state(3, {0: b"b"})])
    with pytest.raises(StateError, match="in the middle of step 3"):
        merge_states([state(3, {0: b"a"}, 1), state(3, {1: b"b"}, 1)])
    with pytest.raises(StateError, match="no state"):
        merge_states([])
