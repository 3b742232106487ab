"""A small store of decoded parts of shards, which neighbouring chunks need again; all workers of a process share it.

A thread that asks for what another one is decoding waits for it, so that nothing is decoded twice at once.
"""

from __future__ import annotations

import collections
import threading
import weakref
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from zephon.errors import not_installed

LIMIT = 256 << 20
_WINDOW = 1 << 31  # the longest that Zstandard writes; the library refuses more than an eighth of it unless told
T = TypeVar("T")


class Held(Generic[T]):
    """The values used last, up to ``limit`` bytes (or what ``size`` counts); the newest is kept whatever its size."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self._values: collections.OrderedDict[Hashable, tuple[Future[T], int]] = collections.OrderedDict()
        self._lock = threading.Lock()
        _stores.add(self)

    def forget(self) -> None:
        """Drops all values that are decoded."""
        with self._lock:
            for key in [key for key, (future, _) in self._values.items() if future.done()]:
                del self._values[key]

    def takes(self, key: Hashable, size: int) -> bool:
        """Whether a value is held already, or one of this size would push no other out."""
        with self._lock:
            return key in self._values or sum(held for _, held in self._values.values()) + size <= self.limit

    def get(self, key: Hashable, decode: Callable[[], T], size: Callable[[T], int]) -> T:
        """The value of this key, decoded now if it is not held. An error is raised to all who wait, and not kept."""
        with self._lock:
            held = self._values.get(key)
            if held is None:
                future: Future[T] = Future()
                self._values[key] = (future, 0)
            else:
                self._values.move_to_end(key)
        if held is not None:
            return held[0].result()
        try:
            value = decode()
        except BaseException as error:
            with self._lock:
                self._values.pop(key, None)
            future.set_exception(error)
            raise
        future.set_result(value)
        with self._lock:
            self._values[key] = (future, size(value))
            self._shrink(key)
        return value

    def _shrink(self, newest: Hashable) -> None:
        total = sum(size for _, size in self._values.values())
        for key in list(self._values):
            if total <= self.limit:
                break
            if key != newest and self._values[key][0].done():
                total -= self._values.pop(key)[1]


_stores: weakref.WeakSet[Held[Any]] = weakref.WeakSet()


def forget_decoded() -> None:
    """Drops all that this process has decoded, as what it was decoded from turned out to be damaged on the way."""
    for store in list(_stores):
        store.forget()


def unzstd(raw: bytes) -> bytes:
    """All frames of a file. The library's own readers accept a truncated file silently.

    Raises:
        ValueError: it is not Zstandard, or damaged.
        EOFError: it ends in the middle of a frame.
    """
    try:
        import zstandard
    except ImportError as error:
        raise not_installed("reading Zstandard files", "zstandard", "zstd") from error
    parts = []
    while raw:
        frame = zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()
        try:
            parts.append(frame.decompress(raw))
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from error
        if not frame.eof:
            raise EOFError("the file ends in the middle of a frame")
        raw = frame.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)
