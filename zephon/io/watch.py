"""Reads that do not return, as of a network mount whose server has gone: said with the file and the byte, then an error.

A thread that waits inside the system for its bytes can neither be asked nor ended. So each read is noted where it begins, which
costs about a millionth of a second, and a thread that sleeps otherwise looks at the notes every few seconds:

    30 s, 60 s, 120 s, ...     a warning names the shard and the byte from which on it is read
    600 s                      the loop gets `StoreFailed`, where it waits in another thread than the one that reads
"""

from __future__ import annotations

import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from zephon.errors import StoreFailed

PATIENCE = 30.0  # seconds before a read that has not returned is said
LIMIT = 600.0  # seconds before it is an error


class _Read(NamedTuple):
    what: str
    start: int | None
    began: float


_under_way: dict[int, _Read] = {}  # by thread
_said: dict[tuple[int, float], float] = {}  # by thread and beginning: how many seconds were said last


@contextmanager
def noted(what: str, start: int | None = None) -> Iterator[None]:
    """Notes what this thread reads, from which byte on."""
    thread = threading.get_ident()
    _under_way[thread] = _Read(what, start, time.monotonic())
    try:
        yield
    finally:
        _under_way.pop(thread, None)


class Watch:
    """Looks after the reads of this process until it is closed.

    Args:
        stuck: called once, in the thread that looks, when a read has not returned for `LIMIT` seconds.
    """

    def __init__(self, stuck: Callable[[StoreFailed], None] | None = None) -> None:
        self._ended = threading.Event()
        method = None if stuck is None else weakref.WeakMethod(stuck)  # its object can be forgotten
        self._thread = threading.Thread(target=_look, args=(self._ended, method), name="zephon-watch", daemon=True)
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, self._ended.set)
        self._thread.start()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._finalizer()
        if os.getpid() == self._owner and self._thread is not threading.current_thread():
            self._thread.join()


def _look(ended: threading.Event, stuck: weakref.WeakMethod[Callable[[StoreFailed], None]] | None) -> None:
    first = time.monotonic()
    while not ended.wait(PATIENCE / 6):
        now, reads = time.monotonic(), list(_under_way.items())
        still = {(thread, read.began) for thread, read in reads}
        for returned in [key for key in list(_said) if key not in still]:
            _said.pop(returned, None)
        for thread, read in reads:
            if read.began < first:
                continue  # of an iterator before, which has said it
            waited = now - read.began
            if waited >= max(PATIENCE, 2 * _said.get((thread, read.began), 0)):
                _said[thread, read.began] = waited
                warnings.warn(f"{_place(read)} has not returned for {waited:.0f} s", stacklevel=1)
            if waited >= LIMIT and stuck is not None and (call := stuck()) is not None:
                stuck = None
                call(
                    StoreFailed(
                        f"{_place(read)} has not returned for {waited:.0f} s",
                        follows="no batch after it would ever come",
                        remedy="look at the disk or the network mount, and start again: the run goes on from its last state",
                    )
                )


def _place(read: _Read) -> str:
    return f"{read.what}: reading{'' if read.start is None else f' from byte {read.start} on'}"


def _forget() -> None:
    _under_way.clear()
    _said.clear()


os.register_at_fork(after_in_child=_forget)
