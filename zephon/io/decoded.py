"""Decoded pieces of shards that neighbouring chunks will want again: a small store shared by all workers of a process.

Who asks for a piece that somebody else is decoding waits for that one; nobody decodes twice at the same time.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zephon.io.dataset import Dataset

LIMIT = 256 << 20


def listing_of(dataset: Dataset) -> Hashable:
    """Stands for one listing of a dataset: data that was listed again, and may be other data, gets another key."""
    return dataset.__dict__.setdefault("_listing", object())  # type: ignore[no-any-return]


class Held:
    """The pieces used last, up to ``limit`` bytes (or what ``size`` counts); the newest is kept whatever its size."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self._pieces: collections.OrderedDict[Hashable, tuple[Future[Any], int]] = collections.OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, decode: Callable[[], Any], size: Callable[[Any], int]) -> Any:
        """The piece of this key, decoded now if it is not held. An error is raised to all who wait, and not kept."""
        with self._lock:
            found = self._pieces.get(key)
            if found is None:
                future: Future[Any] = Future()
                self._pieces[key] = (future, 0)
            else:
                self._pieces.move_to_end(key)
        if found is not None:
            return found[0].result()
        try:
            piece = decode()
        except BaseException as error:
            with self._lock:
                self._pieces.pop(key, None)
            future.set_exception(error)
            raise
        future.set_result(piece)
        with self._lock:
            self._pieces[key] = (future, size(piece))
            total = sum(held for _, held in self._pieces.values())
            for old in list(self._pieces):
                if total <= self.limit:
                    break
                if old != key and self._pieces[old][0].done():
                    total -= self._pieces.pop(old)[1]
        return piece
