"""Read-ahead: an iterator that runs in one thread, a bounded number of items and bytes ahead of its reader."""

from __future__ import annotations

import collections
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from typing import Generic, TypeVar

T = TypeVar("T")


class _Shelf(Generic[T]):
    """A bounded shelf between the thread that makes and the one that takes. One item always has room."""

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
    """Iterates over ``make()`` in a thread of its own. An exception arrives behind the items made before it.

    Args:
        count: items ahead, at most.
        most: bytes ahead, at most, by ``size``.
        waited: seconds that the thread waited for room are added to its ``room``.
    """

    def __init__(
        self,
        make: Callable[[], Iterator[T]],
        count: int,
        *,
        most: int = 1 << 62,
        size: Callable[[T], int] = lambda item: 0,
        waited: MutableMapping[str, float] | None = None,
    ) -> None:
        self._shelf: _Shelf[T] = _Shelf(count, most, size)
        self._thread = threading.Thread(target=_fill, args=(make, self._shelf, waited), name="zephon-delivery", daemon=True)
        self._thread.start()
        self._finalizer = weakref.finalize(self, _close, self._shelf, self._thread)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        shelf = self._shelf
        with shelf.lock:
            while not shelf.items and not shelf.ended and not shelf.closed:
                shelf.wait()
            if shelf.items:
                item, size = shelf.items.popleft()
                shelf.held -= size
                # The maker is woken at half, not for every item: two threads that wake each other each time run slower.
                if len(shelf.items) <= shelf.count // 2:
                    shelf.wake()
                return item
            if shelf.error is not None:
                error, shelf.error = shelf.error, None
                raise error
            raise StopIteration

    def __len__(self) -> int:
        """Items that can be taken now without waiting."""
        return len(self._shelf.items)

    def close(self) -> None:
        self._finalizer()


def _fill(make: Callable[[], Iterator[T]], shelf: _Shelf[T], waited: MutableMapping[str, float] | None) -> None:
    try:
        for item in make():
            size = shelf.size(item)
            with shelf.lock:
                if shelf.full and not shelf.closed:
                    begun = time.perf_counter()
                    while shelf.full and not shelf.closed:
                        shelf.wait()
                    if waited is not None:
                        waited["room"] += time.perf_counter() - begun
                if shelf.closed:
                    break
                shelf.items.append((item, size))
                shelf.held += size
                shelf.wake()
    except BaseException as error:  # noqa: BLE001 - raised in the reader's thread
        shelf.error = error
    finally:
        with shelf.lock:
            shelf.ended = True
            shelf.changed.notify_all()


def _close(shelf: _Shelf[T], thread: threading.Thread) -> None:
    if os.getpid() != shelf.owner:
        return  # a fork's copy: its lock may be held for ever, and the thread stayed with the parent
    with shelf.lock:
        shelf.closed = True
        shelf.items.clear()
        shelf.changed.notify_all()
    if thread is not threading.current_thread():
        thread.join()
