from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon.seeds import KeyedPermutation, below, derive, permutation, raw


def test_keys_differ_by_every_part_and_by_its_type() -> None:
    keys = {derive(0), derive(1), derive(0, "a"), derive(0, "a", "b"), derive(0, "ab"), derive(0, 1), derive(0, "1")}
    assert len(keys) == 7


def test_keys_and_streams_are_the_same_on_every_machine_and_version() -> None:
    assert derive(7, "dataset", "web", 3) == 232899672980188549908609419759389146487
    assert raw(5, 2).tolist() == [13535223855206698129, 10893183200674769480]
    assert permutation(5, 6).tolist() == [2, 4, 3, 1, 5, 0]


@given(st.integers(0, 2**128 - 1), st.integers(1, 300))
def test_a_keyed_permutation_visits_everything_once(key: int, n: int) -> None:
    order = KeyedPermutation(key, n)
    assert sorted(order[i] for i in range(n)) == list(range(n))


def test_a_keyed_permutation_of_a_trillion_answers_at_once_and_refuses_what_is_outside() -> None:
    order = KeyedPermutation(3, 10**12)
    assert len({order[i] for i in (0, 1, 2, 10**12 - 1)}) == 4
    with pytest.raises(IndexError):
        order[10**12]


def test_two_keys_give_unrelated_orders() -> None:
    one, other = KeyedPermutation(1, 1000), KeyedPermutation(2, 1000)
    agreeing = sum(one[i] == other[i] for i in range(1000))
    assert agreeing < 10


def test_below_stays_below_and_is_even() -> None:
    drawn = below(raw(9, 60000), 6)
    counts = np.bincount(drawn, minlength=6)
    assert counts.sum() == 60000
    assert abs(counts - 10000).max() < 500


def test_a_permutation_finds_where_a_value_is() -> None:
    for n in (1, 2, 5, 64, 1000):
        order = KeyedPermutation(derive(3, "inverse", n), n)
        assert [order.index(order[i]) for i in range(n)] == list(range(n))
    with pytest.raises(ValueError, match="5 is not below 5"):
        KeyedPermutation(7, 5).index(5)
