"""Every store but this machine's disks: each answer is checked against what was asked, and what may pass is tried again, here
and nowhere else.

    bytes 5 to 9 MB of s3://data/a.jsonl, which was listed with 12 MB and the tag "ab12"
        reset, timeout, 429, 5xx, a short answer  ->  again, after a random wait that doubles, within TRIES and BUDGET_S
        another size or tag                       ->  the object has changed since it was listed: the run ends
        403, another region, a wrong request      ->  refused at once, with the store's own words
        the whole file                            ->  the server knows no ranges: the file is kept, and read once

A client may try again by itself as well, for a few seconds. Stores whose answers do not say what they are a part of are asked
for it once in RECHECK_S.
"""

from __future__ import annotations

import contextlib
import functools
import random
import threading
import time
from collections.abc import Callable
from typing import IO, TypeVar

from zephon.errors import ConfigError, DataError, NotFound, StoreFailed, ZephonError
from zephon.io.answers import Answer, Mark, Meaning, ask, mark_of, meaning_of
from zephon.io.decoded import Held
from zephon.io.filesystem import FileSystem, Forwarding, open_ranges
from zephon.types import Json

TRIES = 8
BUDGET_S = 120.0  # no try begins later than this after the first
FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 20.0
RECHECK_S = 10.0
PART = 32 << 20  # bytes asked for at once, so that little is asked for again

T = TypeVar("T")
_whole_files: Held[bytes] = Held()


class Remote(Forwarding):
    """A store as it was when it was listed. Can be pickled; what was listed travels with it."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._listed: dict[str, Mark] = {}
        self._state()

    def _state(self) -> None:
        self._seen: dict[str, tuple[Mark, float]] = {}
        self._without_ranges: set[str] = set()
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, object]:
        return {"_fs": self._fs, "_listed": self._listed}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._state()

    def inner(self) -> FileSystem:
        return self._fs

    def url(self, path: str) -> str:
        """The object's name for people."""
        full = getattr(self._fs, "unstrip_protocol", str)(path)
        return str(full)

    def info(self, path: str) -> Json:
        info: Json = self._try(path, lambda: self._fs.info(path))
        self._note(path, info)
        return info

    def exists(self, path: str) -> bool:
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def isdir(self, path: str) -> bool:
        info = self.info(path)
        return info["type"] == "directory" or str(info.get("mimetype")) == "text/html"

    def size(self, path: str) -> int:
        """Bytes of a file. Raises ConfigError where the store does not say how many."""
        return self.mark(path).size or 0

    def glob(self, path: str, *, detail: bool) -> dict[str, Json]:
        return self._with_sizes(self._try(path, lambda: self.inner().glob(path, detail=True)))

    def find(self, path: str, *, detail: bool) -> dict[str, Json]:
        # What cannot be reached would be skipped; only the client for web servers takes this option, and walks pages of links.
        strict = {"on_error": "raise"} if "http" in getattr(self._fs, "protocol", ()) else {}
        find: Callable[..., dict[str, Json]] = self.inner().find
        return self._with_sizes(self._try(path, lambda: find(path, detail=True, **strict)))

    def _with_sizes(self, listed: dict[str, Json]) -> dict[str, Json]:
        from concurrent.futures import ThreadPoolExecutor

        unsized = [path for path, info in listed.items() if info["type"] == "file" and info.get("size") is None]
        if unsized:  # a page of links
            with ThreadPoolExecutor(16) as pool:
                listed.update(zip(unsized, pool.map(self.info, unsized), strict=True))
        for path, info in listed.items():
            self._note(path, info)
        return {path: info | {"size": self._sized(path, info)} for path, info in listed.items() if info["type"] == "file"}

    def _sized(self, path: str, info: Json) -> int:
        size = mark_of(info).size
        if size is None:
            raise ConfigError(
                f"{self.url(path)}: the store does not say how long it is",
                follows="an answer that is cut short would pass as whole",
                remedy="serve it with its length (Content-Length), or copy the data to a disk or an object store",
            )
        return size

    def _note(self, path: str, info: Json) -> None:
        if info["type"] == "file" and info.get("size") is not None:
            self._listed.setdefault(path, mark_of(info))

    def mark(self, path: str) -> Mark:
        """Size and content of a file as it was listed, or as it is when it is asked for the first time."""
        if path not in self._listed:
            self._sized(path, self.info(path))
        return self._listed[path]

    def open(self, path: str, mode: str = "rb") -> IO[bytes]:
        """A file to read and seek in."""
        assert mode == "rb"
        return open_ranges(self, path, self.size(path))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """Bytes [start, end) of a file, fewer only at its end.

        Raises:
            DataError: the file is another one than was listed.
            NotFound: it is not there.
            ConfigError: the store refuses.
            StoreFailed: no good answer came within the budget.
        """
        mark = self.mark(path)
        size = mark.size or 0
        begin, stop = start or 0, size if end is None else min(end, size)
        parts = []
        for at in range(begin, stop, PART):
            part = functools.partial(self._range, path, mark, at, min(at + PART, stop))
            parts.append(self._try(path, part))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _range(self, path: str, mark: Mark, start: int, stop: int) -> bytes:
        if path in self._without_ranges:
            return self._whole(path, mark)[start:stop]
        answer = ask(self._fs, path, start, stop)
        self._check(path, mark, answer.mark)
        whole = answer.start == 0 and len(answer.data) == mark.size
        if whole and stop - start < len(answer.data):
            self._without_ranges.add(path)
            return _whole_files.get((self, path), lambda: answer.data, len)[start:stop]
        return _of_length(answer, start, stop)

    def _whole(self, path: str, mark: Mark) -> bytes:
        def fetch() -> bytes:
            answer = ask(self._fs, path, 0, mark.size or 0)
            self._check(path, mark, answer.mark)
            return _of_length(answer, 0, mark.size or 0)

        return _whole_files.get((self, path), fetch, len)

    def _check(self, path: str, listed: Mark, now: Mark) -> None:
        """Raises DataError where the file that an answer is a part of is not the one that was listed."""
        if now == Mark(None):
            now = self._asked_lately(path, listed)
        if listed.differs(now):
            raise self._changed(path, listed, str(now))

    def _asked_lately(self, path: str, listed: Mark) -> Mark:
        now, asked = self._seen.get(path, (listed, None))
        if asked is None or time.monotonic() - asked > RECHECK_S:
            now = mark_of(self._fs.info(path))
            self._seen[path] = now, time.monotonic()
        return now

    def _changed(self, path: str, listed: Mark, now: str) -> DataError:
        return DataError(
            f"{self.url(path)} has changed since it was listed: it was {listed}, and is {now}",
            follows="documents of both contents would be mixed, or cut silently",
            remedy="restore the file, or start a new run on the data as it is now",
        )

    def _try(self, path: str, attempt: Callable[[], T]) -> T:
        """What ``attempt`` gives, tried again while its failures may pass."""
        began, wait = time.monotonic(), FIRST_WAIT_S
        for number in range(1, TRIES + 1):
            try:
                return attempt()
            except ZephonError:
                raise
            except Exception as error:
                meaning = meaning_of(error)
                pause = random.uniform(0.5, 1) * wait
                late = number == TRIES or time.monotonic() - began + pause > BUDGET_S
                if meaning is Meaning.UNKNOWN:
                    raise
                if meaning is not Meaning.AGAIN or late:
                    raise self._failure(path, meaning, error, number, time.monotonic() - began) from error
            time.sleep(pause)
            wait = min(2 * wait, LONGEST_WAIT_S)
        raise AssertionError

    def _failure(self, path: str, meaning: Meaning, error: Exception, tries: int, seconds: float) -> ZephonError:
        url, cause = self.url(path), _in_one_line(error)
        if meaning is Meaning.ABSENT:
            return NotFound(f"{url} is not there: {cause}", remedy="check the address, or restore the object")
        if meaning is Meaning.REFUSED:
            return ConfigError(
                f"{url}: the store refuses: {cause}",
                remedy="check the credentials and their end, the rights to list and read, and the region or endpoint",
            )
        if meaning is Meaning.CHANGED:
            now = "another one"
            with contextlib.suppress(Exception):
                now = str(mark_of(self._fs.info(path)))
            return self._changed(path, self._listed.get(path, Mark(None)), now)
        return StoreFailed(
            f"{url}: no good answer in {tries} tries within {seconds:.0f} s; the last: {cause}",
            remedy="look at the store and the way to it; the run goes on from its last checkpoint",
        )


def _of_length(answer: Answer, start: int, stop: int) -> bytes:
    if answer.start != start or len(answer.data) != stop - start:
        raise EOFError(
            f"asked for bytes {start} to {stop}, the answer holds {len(answer.data)} bytes from byte {answer.start} on"
        )
    return answer.data


def _in_one_line(error: BaseException) -> str:
    while isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
