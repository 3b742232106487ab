"""The thread runner: native code in stages releases the interpreter lock, the rest takes turns."""

from __future__ import annotations

import collections
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Generic

from zephon.engine.runners.base import Item, Pending, Result


class Abandoned(Exception):
    """A result was asked for that will not come: the loop was interrupted."""


def join_briefly(threads: list[threading.Thread], seconds: float = 0.5) -> None:
    """Waits for threads that were left alone: not longer, since somebody wants the process to end."""
    end = time.monotonic() + seconds
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(0.0, end - time.monotonic()))


class _Task(Generic[Result]):
    """A call, its result once it has one, and the queue it waits in."""

    def __init__(self, queue: _Queue[Result], call: Callable[[], Result]) -> None:
        self._queue = queue
        self._call: Callable[[], Result] | None = call
        self.done = False
        self._error: BaseException | None = None

    def run(self) -> None:
        assert self._call is not None
        try:
            self._value = self._call()
        except BaseException as error:  # noqa: BLE001 - it belongs to the thread that asks for the result
            self._error = error
        self._call = None  # it holds the item, which must go as soon as the item is done
        with self._queue.lock:
            self.done = True
            if self._queue.waiting:
                self._queue.finished.notify_all()

    @property
    def interrupted(self) -> BaseException | None:
        """Ctrl-C or an exit that came while the call ran."""
        return None if isinstance(self._error, Exception) else self._error

    def result(self) -> Result:
        """Waits, and meanwhile does tasks that no worker has begun: a thread that only waits is an idle core."""
        while not self.done:
            task = self._queue.next_or_done(self)
            if task is not None:
                task.run()
                if task.interrupted is not None:
                    raise task.interrupted  # meant for this thread, whatever it was doing
        if self._error is not None:
            raise self._error
        return self._value


class _Queue(Generic[Result]):
    """What the threads share. They hold this and not the runner, so that a forgotten runner can be collected."""

    def __init__(self) -> None:
        self.tasks: collections.deque[_Task[Result]] = collections.deque()
        self.lock = threading.Lock()
        self.added, self.finished = threading.Condition(self.lock), threading.Condition(self.lock)
        self.idle = self.waiting = 0
        self.closed = self.abandoned = False
        self.owner = os.getpid()

    def add(self, task: _Task[Result]) -> None:
        with self.lock:
            self.tasks.append(task)
            if self.idle:
                self.added.notify()

    def next_or_done(self, awaited: _Task[Result]) -> _Task[Result] | None:
        """A task to do, or None when the awaited one is done."""
        with self.lock:
            while not awaited.done:
                if self.abandoned:
                    raise Abandoned
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
            del task  # else an idle worker keeps the last result alive


class ThreadRunner(Generic[Item, Result]):
    """A fixed number of threads over one queue, one of which is the thread that asks for results."""

    def __init__(self, function: Callable[[Item], Result], workers: int) -> None:
        self.workers = workers
        self._function = function
        self._queue: _Queue[Result] = _Queue()
        self._threads = [
            threading.Thread(target=self._queue.serve, name=f"zephon-worker-{i}", daemon=True) for i in range(1, workers)
        ]
        for thread in self._threads:
            thread.start()
        # Also at interpreter exit, when nobody closed us: native code must not be cut off in the middle of a call.
        self._finalizer = weakref.finalize(self, _end, self._queue, self._threads)

    def submit(self, item: Item) -> Pending[Result]:
        function = self._function
        task = _Task(self._queue, lambda: function(item))
        self._queue.add(task)
        return task

    def close(self) -> None:
        """Drops what has not begun and waits for what has."""
        self._finalizer()

    def abandon(self) -> None:
        """Drops what has not begun. What has ends by itself; only the interpreter's exit waits for it, a moment."""
        if self._finalizer.detach() is None:
            return
        with self._queue.lock:
            self._queue.closed = self._queue.abandoned = True
            self._queue.tasks.clear()
            self._queue.added.notify_all()
            self._queue.finished.notify_all()
        weakref.finalize(self, join_briefly, self._threads)


def _end(queue: _Queue[Result], threads: list[threading.Thread]) -> None:
    if os.getpid() != queue.owner:
        return  # a fork's copy: its lock may be held for ever, and the threads stayed with the parent
    with queue.lock:
        queue.closed = True
        queue.tasks.clear()
        queue.added.notify_all()
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()
