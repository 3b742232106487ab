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
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

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


class _Task(Generic[T]):
    """A call, its result once it has one, and the queue it waits in."""

    def __init__(self, queue: _Queue, function: Callable[..., T], args: tuple[object, ...]) -> None:
        self._queue = queue
        self._call: Callable[[], T] | None = lambda: function(*args)
        self.done = False
        self._error: BaseException | None = None

    def run(self) -> None:
        assert self._call is not None
        try:
            self._value = self._call()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to whoever waits for the result
            self._error = error
        self._call = None  # else whoever keeps the task keeps what was worked on
        with self._queue.lock:
            self.done = True
            if self._queue.waiting:
                self._queue.finished.notify_all()

    @property
    def interrupted(self) -> BaseException | None:
        """Ctrl-C or an exit that came while the call ran."""
        return None if isinstance(self._error, Exception) else self._error

    def result(self) -> T:
        """Waits, and while it must wait does what workers have not begun: a thread that only waits is a core that idles."""
        while not self.done:
            task = self._queue.next_or_done(self)
            if task is not None:
                task.run()
                if task.interrupted is not None:
                    raise task.interrupted  # meant for this thread, whatever it was doing
        if self._error is not None:
            raise self._error
        return self._value


class _Queue:
    """What the threads share. They hold this and not the runner, so that a forgotten runner can be collected."""

    def __init__(self) -> None:
        self.tasks: collections.deque[_Task[Any]] = collections.deque()
        self.lock = threading.Lock()
        self.added, self.finished = threading.Condition(self.lock), threading.Condition(self.lock)
        self.idle = self.waiting = 0
        self.closed = False
        self.owner = os.getpid()

    def add(self, task: _Task[Any]) -> None:
        with self.lock:
            self.tasks.append(task)
            if self.idle:
                self.added.notify()

    def next_or_done(self, awaited: _Task[Any]) -> _Task[Any] | None:
        """A task to do, or None when the awaited one is done."""
        with self.lock:
            while not awaited.done:
                if self.tasks:
                    return self.tasks.popleft()
                self.waiting += 1
                try:
                    self.finished.wait()
                finally:
                    self.waiting -= 1
        return None

    def serve(self) -> None:
        while True:
            with self.lock:
                while not self.tasks and not self.closed:
                    self.idle += 1
                    self.added.wait()
                    self.idle -= 1
                if self.closed:
                    return
                task = self.tasks.popleft()
            task.run()
            del task  # else an idle worker keeps the last chunk alive


class ThreadRunner:
    """A fixed number of threads over one queue, one of which is the thread that asks for results.

    Native code in stages releases the GIL; the rest takes turns.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._queue = _Queue()
        self._threads = [
            threading.Thread(target=self._queue.serve, name=f"zephon-worker-{i}", daemon=True) for i in range(1, workers)
        ]
        for thread in self._threads:
            thread.start()
        # Also at interpreter exit, when nobody closed us: native code must not be cut off in the middle of a call.
        self._finalizer = weakref.finalize(self, _end, self._queue, self._threads)

    def submit(self, function: Callable[..., T], *args: object) -> Pending[T]:
        task = _Task(self._queue, function, args)
        self._queue.add(task)
        return task

    def close(self) -> None:
        """Drops what has not begun and waits for what has."""
        self._finalizer()


def _end(queue: _Queue, threads: list[threading.Thread]) -> None:
    if os.getpid() != queue.owner:
        return  # a fork's copy: its lock may be held for ever, and the threads stayed with the parent
    with queue.lock:
        queue.closed = True
        queue.tasks.clear()
        queue.added.notify_all()
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
        from zephon.engine.runners.processes import ProcessRunner

        return ProcessRunner(count, program)
    return ThreadRunner(count)
