"""The thread runner: results and errors to their asker, the asker helps, and threads end with the runner."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from tests.engine.parts import until
from zephon.engine.runners.base import InlineRunner
from zephon.engine.runners.threads import ThreadRunner


def square(number: int) -> int:
    if number < 0:
        raise ValueError(number)
    return number * number


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("zephon-worker")]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_each_result_is_that_of_its_item_in_whatever_order_they_are_asked_for(count: int) -> None:
    runner = ThreadRunner(square, count)
    pending = [runner.submit(number) for number in range(50)]
    assert [one.result() for one in reversed(pending)] == [number * number for number in reversed(range(50))]
    assert pending[7].result() == 49
    runner.close()


def test_an_error_is_raised_where_its_result_is_asked_for() -> None:
    runner = ThreadRunner(square, 2)
    bad, good = runner.submit(-1), runner.submit(3)
    assert good.result() == 9
    with pytest.raises(ValueError, match="-1"):
        bad.result()
    runner.close()


def test_with_one_worker_the_asker_does_all_the_work() -> None:
    runner = ThreadRunner(lambda _: threading.current_thread(), 1)
    assert runner.submit(0).result() is threading.current_thread()
    assert workers() == []
    runner.close()


def test_an_asker_that_would_wait_does_what_no_worker_has_begun() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work(number: int) -> threading.Thread:
        if number == 0:
            begun.set()
            assert go_on.wait(20)
        elif number == 2:
            go_on.set()  # only after the asker has come past item 1
        return threading.current_thread()

    runner = ThreadRunner(work, 2)
    blocked = runner.submit(0)
    assert begun.wait(20)
    helped, last = runner.submit(1), runner.submit(2)
    assert last.result() is threading.current_thread()
    assert helped.result() is threading.current_thread()
    assert blocked.result() is not threading.current_thread()
    runner.close()


def test_closing_ends_the_threads_and_drops_what_has_not_begun() -> None:
    done: list[int] = []
    gate = threading.Event()

    def work(number: int) -> None:
        gate.wait(20)
        done.append(number)

    runner = ThreadRunner(work, 2)
    for number in range(10):
        runner.submit(number)
    threading.Timer(0.05, gate.set).start()
    runner.close()
    assert workers() == []
    assert len(done) <= 1


def test_a_forgotten_runner_ends_its_threads_and_a_done_item_is_let_go() -> None:
    class Item:
        pass

    runner = ThreadRunner(lambda _: None, 2)
    item = Item()
    gone = weakref.ref(item)
    pending = runner.submit(item)
    pending.result()
    del item
    assert gone() is None
    del runner, pending
    gc.collect()
    assert until(lambda: workers() == [])


def test_inline_work_is_done_once_when_it_is_asked_for() -> None:
    done: list[int] = []
    runner = InlineRunner(lambda number: done.append(number) or number)  # type: ignore[func-returns-value]
    pending = runner.submit(4)
    assert done == []
    assert [pending.result(), pending.result()] == [4, 4]
    assert done == [4]
