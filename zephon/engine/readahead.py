"""Read-ahead: an iterator that runs in one thread, a bounded number of items ahead of its reader."""

from __future__ import annotations

import collections
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class _Shelf(Generic[T]):
    """A bounded shelf between the thread that makes and the one that takes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.items: collections.deque[T] = collections.deque()
        self.changed = threading.Condition()
        self.error: BaseException | None = None
        self.ended = False
        self.closed = False


class ReadAhead(Generic[T]):
    """Iterates over ``make()`` in a thread of its own. An exception arrives behind the items made before it."""

    def __init__(self, make: Callable[[], Iterator[T]], size: int) -> None:
        self._shelf: _Shelf[T] = _Shelf(size)
        self._thread = threading.Thread(target=_fill, args=(make, self._shelf), name="zephon-delivery", daemon=True)
        self._thread.start()
        self._finalizer = weakref.finalize(self, _close, self._shelf, self._thread)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        shelf = self._shelf
        with shelf.changed:
            while not shelf.items and not shelf.ended and not shelf.closed:
                shelf.changed.wait()
            if shelf.items:
                item = shelf.items.popleft()
                shelf.changed.notify_all()
                return item
            if shelf.error is not None:
                error, shelf.error = shelf.error, None
                raise error
            raise StopIteration

    def close(self) -> None:
        self._finalizer()


def _fill(make: Callable[[], Iterator[T]], shelf: _Shelf[T]) -> None:
    try:
        for item in make():
            with shelf.changed:
                while len(shelf.items) >= shelf.size and not shelf.closed:
                    shelf.changed.wait()
                if shelf.closed:
                    break
                shelf.items.append(item)
                shelf.changed.notify_all()
    except BaseException as error:  # noqa: BLE001 - raised in the reader's thread
        shelf.error = error
    finally:
        with shelf.changed:
            shelf.ended = True
            shelf.changed.notify_all()


def _close(shelf: _Shelf[T], thread: threading.Thread) -> None:
    with shelf.changed:
        shelf.closed = True
        shelf.items.clear()
        shelf.changed.notify_all()
    if thread is not threading.current_thread():
        thread.join()
