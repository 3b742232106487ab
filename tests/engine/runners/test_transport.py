"""A channel: objects arrive as they were, large arrays through the slot, and a closed end is said on both sides."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from zephon.engine.runners.transport import Channel, Closed, make_slots


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    one, other = socket.socketpair()
    slots = make_slots(2)
    both = Channel(one, slots), Channel(other, [os.dup(slot) for slot in slots])
    yield both
    for end in both:
        end.close()


def test_an_object_without_a_slot_goes_through_the_socket(ends: tuple[Channel, Channel]) -> None:
    ends[0].send({"a": [1, None, "é"]})
    assert ends[1].receive() == ({"a": [1, None, "é"]}, -1)


@pytest.mark.parametrize("size", [0, 3, 4095, 4096, 100_000])
def test_arrays_of_every_size_arrive_as_they_were_and_writable(ends: tuple[Channel, Channel], size: int) -> None:
    sent = [np.arange(size, dtype=np.uint8), np.arange(size, dtype=np.float64), "between", np.ones((size, 2), np.int32)]
    ends[0].send(sent, 1)
    received, slot = ends[1].receive()
    assert slot == 1
    for before, after in zip(sent, received, strict=True):
        np.testing.assert_array_equal(before, after)
    received[1][:1] = 7.0


def test_a_slot_may_be_written_again_as_soon_as_its_message_has_been_received(ends: tuple[Channel, Channel]) -> None:
    ends[0].send(np.full(9000, 1), 0)
    first, _ = ends[1].receive()
    ends[0].send(np.full(9000, 2), 0)
    second, _ = ends[1].receive()
    assert (first == 1).all()
    assert (second == 2).all()


def test_hanging_up_ends_a_receive_that_waits_on_either_side(ends: tuple[Channel, Channel]) -> None:
    ended: list[bool] = []

    def wait() -> None:
        with pytest.raises(Closed):
            ends[1].receive()
        ended.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    ends[0].hang_up()
    thread.join(20)
    assert ended == [True]
    with pytest.raises(Closed):
        ends[0].receive()
    with pytest.raises(Closed):
        ends[0].send(1)


def test_a_message_that_is_cut_off_is_a_closed_channel() -> None:
    one, other = socket.socketpair()
    one.sendall(b"\x10\0\0")
    one.close()
    end = Channel(other, [])
    with pytest.raises(Closed):
        end.receive()
    end.close()
