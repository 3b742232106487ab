"""Read-ahead: in order, bounded, errors after the items before them, and a thread that ends with its reader."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Iterator

import pytest

from tests.engine.parts import until
from zephon.engine.readahead import ReadAhead


def test_items_come_in_order_and_the_end_is_the_end() -> None:
    ahead = ReadAhead(lambda: iter(range(100)), 3)
    assert list(ahead) == list(range(100))
    assert next(ahead, None) is None
    ahead.close()


@pytest.mark.parametrize(("count", "most"), [(3, 1 << 40), (100, 30)])
def test_it_stops_at_its_limit_in_items_or_bytes_and_goes_on_when_half_is_taken(count: int, most: int) -> None:
    made: list[int] = []
    waits: list[float] = []

    def make() -> Iterator[int]:
        for number in itertools.count():
            made.append(number)
            yield number

    with_room = min(count, most // 10)
    ahead = ReadAhead(make, count, most=most, size=lambda _: 10, waited=waits.append)
    for taken in range(6):
        assert until(lambda: len(ahead) > 0)
        assert len(made) <= taken + with_room + 1  # one more is in the maker's hand
        assert next(ahead) == taken
    assert until(lambda: len(made) > with_room)
    ahead.close()
    assert sum(waits) > 0


def test_one_item_always_fits_however_large_it_is() -> None:
    ahead = ReadAhead(lambda: iter("ab"), 1, most=1, size=lambda _: 100)
    assert list(ahead) == ["a", "b"]


def test_an_error_arrives_after_the_items_before_it_and_once() -> None:
    def make() -> Iterator[int]:
        yield 1
        raise KeyError("two")

    ahead = ReadAhead(make, 5)
    assert next(ahead) == 1
    with pytest.raises(KeyError, match="two"):
        next(ahead)
    assert next(ahead, None) is None


def test_closing_wakes_a_maker_that_waits_and_ends_its_thread() -> None:
    before = set(threading.enumerate())
    ahead = ReadAhead(itertools.count, 2)
    assert until(lambda: len(ahead) == 2)
    (own,) = set(threading.enumerate()) - before
    ahead.close()
    assert not own.is_alive()
    assert next(ahead, None) is None


def test_a_forgotten_one_ends_its_thread() -> None:
    before = set(threading.enumerate())  # some of them may be about to end
    ahead = ReadAhead(itertools.count, 2)
    next(ahead)
    (own,) = set(threading.enumerate()) - before
    del ahead
    gc.collect()
    assert until(lambda: not own.is_alive())
