"""Read-ahead: an iterator that runs in one thread, a bounded number of items and bytes ahead of its reader."""

from __future__ import annotations

import collections
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from zephon.engine.runners.threads import join_briefly

T = TypeVar("T")


class _BoundedQueue(Generic[T]):
    """Between the thread that makes items and the one that takes them. One item always fits."""

    def __init__(self, count: int, most: int, size: Callable[[T], int]) -> None:
        self.count, self.most, self.size = count, most, size
        self.items: collections.deque[tuple[T, int]] = collections.deque()  # each with its size
        self.held = 0
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.waiting = 0
        self.error: BaseException | None = None
        self.ended = False
        self.closed = False
        self.owner = os.getpid()

    @property
    def full(self) -> bool:
        return bool(self.items) and (len(self.items) >= self.count or self.held >= self.most)

    def wait(self) -> None:
        self.waiting += 1
        try:
            self.changed.wait()
        finally:
            self.waiting -= 1

    def wake(self) -> None:
        if self.waiting:
            self.changed.notify_all()


class ReadAhead(Generic[T]):
    """Iterates over ``make()`` in a thread of its own. An exception arrives after the items made before it.

    Args:
        count: items ahead, at most.
        most: bytes ahead, at most, by ``size``.
        waited: called with the seconds that the thread has waited because the queue was full.
    """

    def __init__(
        self,
        make: Callable[[], Iterator[T]],
        count: int,
        *,
        most: int = 1 << 62,
        size: Callable[[T], int] = lambda item: 0,
        waited: Callable[[float], None] | None = None,
    ) -> None:
        self._queue: _BoundedQueue[T] = _BoundedQueue(count, most, size)
        self._thread = threading.Thread(target=_fill, args=(make, self._queue, waited), name="zephon-delivery", daemon=True)
        self._thread.start()
        self._finalizer = weakref.finalize(self, _close, self._queue, self._thread)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        queue = self._queue
        with queue.lock:
            while not queue.items and not queue.ended and not queue.closed:
                queue.wait()
            if queue.items:
                item, size = queue.items.popleft()
                queue.held -= size
                # The making thread is woken when half are left: two threads that wake each other for every item run slower.
                if len(queue.items) <= queue.count // 2:
                    queue.wake()
                return item
            if queue.error is not None:
                error, queue.error = queue.error, None
                raise error
            raise StopIteration

    def __len__(self) -> int:
        """Items that can be taken now without waiting."""
        return len(self._queue.items)

    def close(self) -> None:
        self._finalizer()

    def abandon(self) -> None:
        """Ends without waiting for the thread, which ends after what it is doing."""
        if self._finalizer.detach() is not None:
            with self._queue.lock:
                self._queue.closed = True
                self._queue.items.clear()
                self._queue.changed.notify_all()
            weakref.finalize(self, join_briefly, [self._thread])


def _fill(make: Callable[[], Iterator[T]], queue: _BoundedQueue[T], waited: Callable[[float], None] | None) -> None:
    try:
        for item in make():
            size = queue.size(item)
            with queue.lock:
                if queue.full and not queue.closed:
                    begun = time.perf_counter()
                    while queue.full and not queue.closed:
                        queue.wait()
                    if waited is not None:
                        waited(time.perf_counter() - begun)
                if queue.closed:
                    break
                queue.items.append((item, size))
                queue.held += size
                queue.wake()
    except BaseException as error:  # noqa: BLE001 - raised in the reader's thread
        queue.error = error
    finally:
        with queue.lock:
            queue.ended = True
            queue.changed.notify_all()


def _close(queue: _BoundedQueue[T], thread: threading.Thread) -> None:
    if os.getpid() != queue.owner:
        return  # a fork's copy: its lock may be held for ever, and the thread stayed with the parent
    with queue.lock:
        queue.closed = True
        queue.items.clear()
        queue.changed.notify_all()
    if thread is not threading.current_thread():
        thread.join()
