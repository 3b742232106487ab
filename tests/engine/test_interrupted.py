"""What a loop gets back when it is interrupted, or when a user's function fails in a child process."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.parts import quiet
from zephon import Dataset, InMemoryShard, Pipeline, StaticMixtureWorkSource

HURRY = threading.Event()


def slow(document: dict[str, Any]) -> dict[str, Any]:
    HURRY.wait(0.25)
    return document


def failing(document: dict[str, Any]) -> dict[str, Any]:
    raise LookupError("not in the list of users")


class Unportable(Exception):
    def __init__(self, one: str, other: str) -> None:
        super().__init__(one + other)


def failing_unportably(document: dict[str, Any]) -> dict[str, Any]:
    raise Unportable("not in the list", " of users")


def no_state() -> list[Any]:
    raise LookupError("not in the list of users")


def push(state: list[Any], records: list[Any]) -> tuple[list[Any], list[Any]]:
    return state, records


def pipeline_of(function: Callable[..., Any] | None, **options: Any) -> Pipeline:
    dataset = Dataset.from_dict("d", {"s": InMemoryShard([{"text": "x" * 40}] * 400)})
    pipeline = Pipeline(StaticMixtureWorkSource([dataset], exhausted_policy="repeat", chunk_bytes=1600))
    pipeline.options(global_batch_size=2, **options)
    if function is not None:
        pipeline.map_transform(function, version="1")
    else:
        pipeline.stateful_transform("s", init_state=no_state, push=push)
    return pipeline.tokenize(tokenizer_id="bytes", field="text").pack_flat(16, algorithm="wrap").batch(2)


@pytest.mark.parametrize("prefetch", [0, 8])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_loop_has_control_within_a_second_however_slow_a_transform_is(number: int, prefetch: int) -> None:
    def leave(*_: object) -> None:
        raise SystemExit(1)

    quiet()
    # Both are set: a shell starts what it puts in its background with SIGINT ignored.
    wanted: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: leave}
    before = {each: signal.signal(each, handler) for each, handler in wanted.items()}
    pipeline = pipeline_of(slow, runner="threads", max_workers=3, prefetch_batches=prefetch)
    sent: list[float] = []

    def interrupt() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), number)

    timer = threading.Timer(1.0, interrupt)
    timer.start()
    try:
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            next(iter(pipeline))
        assert time.monotonic() < sent[0] + 1.0
        begun = time.monotonic()
        pipeline.close()
        assert time.monotonic() < begun + 1.0
    finally:
        timer.cancel()  # no signal may come once the handlers are gone
        for each, handler in before.items():
            signal.signal(each, handler)
        HURRY.set()  # so that no thread is left for the tests after this one
        for thread in threading.enumerate():
            if thread.name.startswith("zephon-"):
                thread.join(10.0)
                assert not thread.is_alive(), "a thread that was let go ends after what it was doing"
        HURRY.clear()


@pytest.mark.parametrize("options", [{"runner": "process", "max_workers": 1}, {"isolated": True}])
@pytest.mark.parametrize("function", [failing, failing_unportably])
def test_a_transform_that_fails_in_a_child_tells_its_line_and_the_documents_address(
    function: Any, options: dict[str, Any]
) -> None:
    with pytest.raises((LookupError, RuntimeError), match="not in the list of users") as caught:
        next(iter(pipeline_of(function, **options)))
    told = "\n".join(caught.value.__notes__)
    assert f"in {function.__name__}\n" in told
    assert "test_interrupted.py" in told
    assert "dataset 'd'" in told


def test_an_init_state_that_fails_in_a_child_is_the_error_and_not_a_dead_process() -> None:
    with pytest.raises(LookupError, match="not in the list of users") as caught:
        next(iter(pipeline_of(None, isolated=True)))
    told = "\n".join(caught.value.__notes__)
    assert "in no_state\n" in told
    assert "in init_state of stateful_transform 's', lane 0" in told
