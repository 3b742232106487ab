"""Workers: run functions somewhere else, results in the order of submission.

A runner has three verbs: ``submit`` returns something with ``result()``, ``close`` ends all threads, and ``workers`` says
how many there are. Inline is the runner with no workers: it runs the function when its result is asked for.
"""

from __future__ import annotations

import collections
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from zephon.engine.program import Program

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Pending(Protocol[T_co]):
    """A result to come."""

    def result(self) -> T_co: ...


class Runner(Protocol):
    @property
    def workers(self) -> int: ...

    def submit(self, function: Callable[..., T], *args: object) -> Pending[T]: ...

    def close(self) -> None: ...


class _Lazy(Generic[T]):
    def __init__(self, function: Callable[..., T], args: tuple[object, ...]) -> None:
        self._call: Callable[[], T] | None = lambda: function(*args)

    def result(self) -> T:
        if self._call is not None:
            self._value, self._call = self._call(), None
        return self._value


class InlineRunner:
    """No workers: the caller does the work."""

    workers = 0

    def submit(self, function: Callable[..., T], *args: object) -> Pending[T]:
        return _Lazy(function, args)

    def close(self) -> None:
        pass


_Job = tuple["Future[object]", Callable[..., object], tuple[object, ...]]


class _Queue:
    """What the threads share. They hold this and not the runner, so that a forgotten runner can be collected."""

    def __init__(self) -> None:
        self.jobs: collections.deque[_Job] = collections.deque()
        self.changed = threading.Condition()
        self.closed = False
        self.owner = os.getpid()

    def run(self) -> None:
        while True:
            with self.changed:
                while not self.jobs and not self.closed:
                    self.changed.wait()
                if self.closed:
                    return
                future, function, args = self.jobs.popleft()
            try:
                future.set_result(function(*args))
            except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to whoever waits for the result
                future.set_exception(error)
            del future, function, args  # else an idle worker keeps the last chunk alive


class ThreadRunner:
    """A fixed number of threads over one queue. Native code in stages releases the GIL; the rest takes turns."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._queue = _Queue()
        self._threads = [
            threading.Thread(target=self._queue.run, name=f"zephon-worker-{i}", daemon=True) for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()
        # Also at interpreter exit, when nobody closed us: native code must not be cut off in the middle of a call.
        self._finalizer = weakref.finalize(self, _end, self._queue, self._threads)

    def submit(self, function: Callable[..., T], *args: object) -> Pending[T]:
        future: Future[T] = Future()
        with self._queue.changed:
            self._queue.jobs.append((future, function, args))  # type: ignore[arg-type]
            self._queue.changed.notify()
        return future

    def close(self) -> None:
        """Drops what has not begun and waits for what has."""
        self._finalizer()


def _end(queue: _Queue, threads: list[threading.Thread]) -> None:
    if os.getpid() != queue.owner:
        return  # a fork's copy: its lock may be held for ever, and the threads stayed with the parent
    with queue.changed:
        queue.closed = True
        queue.jobs.clear()
        queue.changed.notify_all()
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()


def default_workers() -> int:
    """As many as this process may use, at most 8."""
    affinity = getattr(os, "sched_getaffinity", None)
    return min(8, len(affinity(0)) if affinity else os.cpu_count() or 1)


def make_runner(kind: str, workers: int | None, program: Program) -> Runner:
    """``threads``, ``process`` or ``inline``; no workers is inline too."""
    count = default_workers() if workers is None else workers
    if kind == "inline" or count == 0:
        return InlineRunner()
    if kind == "process":
        from zephon.engine.processes import ProcessRunner

        return ProcessRunner(count, program)
    return ThreadRunner(count)
