"""A disk cache for shards that lie far away: pieces of files, each in a file of its own, shared by all processes of a node.

    read 5 to 9 MB of s3://data/web/a.jsonl  ->  pieces 1 and 2 (of 4 MB)  ->  <root>/<ab>/<key of file and piece>

A key holds the address, the size and what the store says of the content (its tag, or the time of the last change), so that a
shard that was written again has other keys. A piece appears whole or not at all: it is written under a name of its own and
renamed. One process of a node fetches it while the others wait. Any process may remove pieces at any time, the oldest first; a
reader that has one open keeps it, and one that comes too late fetches it again. Only files that this cache has made are ever
removed, and local data is not cached.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import io
import os
import threading
import time
import uuid
import weakref
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from zephon.errors import ConfigError, nearest
from zephon.io.dataset import Dataset
from zephon.io.filesystem import FileSystem, Forwarding, open_ranges
from zephon.io.remote import Remote
from zephon.io.storage import is_local
from zephon.types import Json

PIECE = 4 << 20
SUFFIX, CHECK = ".piece", 4  # a piece is followed by its CRC-32: a node that lost power may keep a file of zeros
KEPT = 0.9  # of the limit is still in use after pieces were removed, so that they are not removed for every new piece
LOCKS = 1024  # files that keep processes from fetching one piece at once
UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """``io_options={"cache": {...}}``.

    Args:
        enabled: whether to cache at all.
        root: a directory on this node's own disk.
        limit_bytes: how much to keep, a number or "500gb"; None keeps everything.
    """

    enabled: bool = False
    root: str = "~/.cache/zephon"
    limit_bytes: int | str | None = None

    def __post_init__(self) -> None:
        if self.limit_bytes is not None and self.limit < 2 * PIECE:
            raise ConfigError(
                f"cache limit_bytes={self.limit_bytes!r} is less than two pieces of {PIECE:,} bytes",
                follows="every piece would be removed before it is read again",
                remedy=f"give at least {2 * PIECE:,}, or give no limit",
            )

    @property
    def limit(self) -> int:
        """The limit in bytes; meaningful where there is one."""
        return size_of(self.limit_bytes) if self.limit_bytes is not None else 0

    @staticmethod
    def of(io_options: Mapping[str, Mapping[str, object]]) -> CacheOptions:
        """From what `Pipeline.options` was given. Raises ConfigError for names that are not known."""
        for given, known in ((io_options, ["cache"]), (io_options.get("cache", {}), _names())):
            for name in given:
                if name not in known:
                    raise ConfigError(f"io_options: {name!r} is not known", remedy=nearest(name, known))
        chosen: Json = {**io_options.get("cache", {})}
        return CacheOptions(**chosen)


def _names() -> list[str]:
    return [field.name for field in dataclasses.fields(CacheOptions)]


def size_of(value: int | str) -> int:
    """Bytes of 1000, "500gb" or "2 GiB". Raises ConfigError for anything else."""
    text = str(value).strip().lower()
    number = text.rstrip("bkmgti ")
    try:
        return int(float(number) * UNITS[text[len(number) :].strip()])
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{value!r} is not a size", remedy='write a number of bytes, or "500gb"') from error


# One copy for all iterators, so that decoded values in memory are shared as well; gone with its dataset.
_copies: weakref.WeakKeyDictionary[Dataset, dict[CacheOptions, Dataset]] = weakref.WeakKeyDictionary()


def cached(dataset: Dataset, options: CacheOptions) -> Dataset:
    """The same dataset read through the cache; the dataset itself where nothing is to be cached. Same identity, same plan."""
    if not options.enabled or dataset.fs is None or is_local(dataset.fs):
        return dataset
    copies = _copies.setdefault(dataset, {})
    if options not in copies:
        copies[options] = dataclasses.replace(dataset, fs=CachedFiles(dataset.fs, options))
    return copies[options]


class CachedFiles(Forwarding):
    """What a format asks of a file system, answered from pieces on disk. Starts no thread; can be pickled."""

    def __init__(self, fs: FileSystem, options: CacheOptions) -> None:
        self._fs, self._options = fs if isinstance(fs, Remote) else Remote(fs), options
        self._root = Path(options.root).expanduser()
        self._state()

    def _state(self) -> None:
        self.hits = self.misses = 0
        self._lock = threading.Lock()
        self._unaccounted = 1 << 62  # so that the first piece looks at what is there
        self._fetching_again = threading.Lock()
        self._fetched_again: dict[str, tuple[str, str]] = {}

    def __getstate__(self) -> dict[str, object]:
        return {"_fs": self._fs, "_options": self._options, "_root": self._root}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._state()

    def inner(self) -> FileSystem:
        return self._fs

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """Bytes [start, end) of a file; shorter at its end."""
        key, size = self._identity(path)
        if key is None:
            return self._fs.cat_file(path, start, end)
        begin, stop = start or 0, size if end is None else min(end, size)
        if begin >= stop:
            return b""
        parts = []
        for number in range(begin // PIECE, (stop - 1) // PIECE + 1):
            piece = self._piece(path, key, number, size)
            at = number * PIECE
            parts.append(piece[max(begin - at, 0) : stop - at])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def open(self, path: str, mode: str = "rb") -> io.BufferedReader:
        """A file to read and seek in, such as Parquet's reader wants."""
        assert mode == "rb"
        return open_ranges(self, path, self._identity(path)[1])

    def fetch_again(self, path: str) -> tuple[str, str] | None:
        """Fetches the cached pieces of a shard that cannot be decoded again, once; None where nothing of it is cached.

        Returns:
            SHA-256 of those pieces, and of what was fetched in their place.
        """
        key, size = self._identity(path)
        if key is None:
            return None
        with self._fetching_again:
            if path not in self._fetched_again:
                before, after = hashlib.sha256(), hashlib.sha256()
                for number in range(-(-size // PIECE)):
                    place, length = self._place(key, number), min(PIECE, size - number * PIECE)
                    if (kept := _kept(place, length)) is not None:
                        before.update(kept)
                        after.update(self._fetch(path, place, number * PIECE, length))
                self._fetched_again[path] = before.hexdigest(), after.hexdigest()
            return self._fetched_again[path]

    def _identity(self, path: str) -> tuple[str | None, int]:
        """(key of the file's content or None where the store says nothing of it, size)."""
        mark = self._fs.mark(path)
        if mark.kind is None:
            return None, mark.size or 0
        store = self._fs.inner()
        parts = [type(store).__name__, str(getattr(store, "path", "")), path, str(mark.size), str(mark.value)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest(), mark.size or 0

    def _place(self, key: str, number: int) -> Path:
        return self._root / key[:2] / f"{key}-{number}{SUFFIX}"

    def _piece(self, path: str, key: str, number: int, size: int) -> bytes:
        place = self._place(key, number)
        length = min(PIECE, size - number * PIECE)
        data = _kept(place, length)
        if data is None:
            with self._alone(place):
                data = _kept(place, length)  # perhaps fetched by another process meanwhile
                if data is None:
                    self.misses += 1
                    return self._fetch(path, place, number * PIECE, length)
        self.hits += 1
        return data

    def _fetch(self, path: str, place: Path, start: int, length: int) -> bytes:
        data = self._fs.cat_file(path, start, start + length)
        self._keep(place, data)
        return data

    @contextlib.contextmanager
    def _alone(self, place: Path) -> Iterator[None]:
        """Of all processes of the node one fetches a piece. Where the file system knows no locks, two may fetch the same."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                folder = self._root / "locks"
                folder.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(open(folder / f"{zlib.crc32(place.name.encode()) % LOCKS:03x}", "ab"))
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _keep(self, place: Path, data: bytes) -> None:
        """Writes a piece if there is room for it; a disk that is full costs speed and nothing else."""
        scratch = place.with_name(f"{place.name}.{uuid.uuid4().hex}.tmp")
        try:
            self._make_room(len(data))
            place.parent.mkdir(parents=True, exist_ok=True)
            scratch.write_bytes(data + _check(data))
            scratch.replace(place)
        except OSError:
            with contextlib.suppress(OSError):
                scratch.unlink()

    def _make_room(self, coming: int) -> None:
        if self._options.limit_bytes is None:
            return
        limit = self._options.limit
        with self._lock:
            # Others write here too, so what is there is counted again after every tenth of the limit.
            self._unaccounted += coming
            if self._unaccounted < limit * (1 - KEPT):
                return
            pieces = sorted(_pieces(self._root))
            total = sum(size for _, size, _ in pieces) + coming
            for _, size, place in pieces:
                if total <= limit * KEPT:
                    break
                place.unlink(missing_ok=True)
                total -= size
            self._unaccounted = 0


def _pieces(root: Path) -> Iterator[tuple[float, int, Path]]:
    """(last use, size, place) of this cache's own files, and of what a killed process has left half written."""
    for folder in root.iterdir() if root.is_dir() else ():
        if not folder.is_dir() or len(folder.name) != 2:
            continue
        for place in folder.iterdir():
            if place.suffix == SUFFIX or (place.suffix == ".tmp" and SUFFIX in place.name):
                try:
                    status = place.stat()
                except FileNotFoundError:
                    continue
                yield status.st_mtime, status.st_size, place


def _kept(place: Path, length: int) -> bytes | None:
    """A piece's data; None where it is not there, damaged, or on a disk that fails: the source has it."""
    with contextlib.suppress(OSError):
        kept = place.read_bytes()
        data = kept[:-CHECK]
        if len(data) == length and kept[-CHECK:] == _check(data):
            _touch(place)
            return data
    return None


def _check(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(CHECK, "little")


def _touch(place: Path) -> None:
    with contextlib.suppress(OSError):
        if time.time() - place.stat().st_mtime > 60:  # a minute is close enough to know what was used last
            os.utime(place)
