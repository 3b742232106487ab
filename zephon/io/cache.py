"""A disk cache for shards that lie far away: pieces of files, each in a file of its own, shared by all processes of a node.

    read 5 to 9 MB of s3://data/web/a.jsonl  ->  pieces 1 and 2 (of 4 MB)  ->  <root>/<ab>/<key of file and piece>

A key holds the address, the size and what the store says of the content (its tag, or the time of the last change), so that a
shard that was written again has other keys. A piece appears whole or not at all: it is written under a name of its own and
renamed. Any process may remove pieces at any time, the oldest first; a reader that has one open keeps it, and one that comes
too late fetches it again. Only files that this cache has made are ever removed, and local data is not cached.
"""

from __future__ import annotations

import contextlib
import dataclasses
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
from typing import TYPE_CHECKING

from zephon.errors import ConfigError, nearest
from zephon.io.dataset import Dataset
from zephon.io.storage import FileSystem, Forwarding, is_local
from zephon.types import Json

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

PIECE = 4 << 20
SUFFIX, CHECK = ".piece", 4  # a piece is followed by its CRC-32: a node that lost power may keep a file of zeros
KEPT = 0.9  # of the limit is still in use after pieces were removed, so that they are not removed for every new piece
CONTENT = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "created")
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
        self._fs, self._options = fs, options
        self._root = Path(options.root).expanduser()
        self._state()

    def _state(self) -> None:
        self.hits = self.misses = 0
        self._known: dict[str, tuple[str | None, int]] = {}
        self._lock = threading.Lock()
        self._unaccounted = 1 << 62  # so that the first piece looks at what is there

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
            return bytes(self._fs.cat_file(path, start=start, end=end))
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
        return io.BufferedReader(_File(self, path, self._identity(path)[1]), 1 << 16)

    def _identity(self, path: str) -> tuple[str | None, int]:
        """(key of the file's content or None where the store says nothing of it, size), asked once."""
        identity = self._known.get(path)
        if identity is None:
            info = self._fs.info(path)
            marks = [str(info[name]) for name in CONTENT if info.get(name) is not None]
            parts = [type(self._fs).__name__, str(getattr(self._fs, "path", "")), path, str(info["size"]), *marks]
            key = hashlib.sha256("\0".join(parts).encode()).hexdigest() if marks else None
            identity = key, int(info["size"])
            self._known[path] = identity
        return identity

    def _piece(self, path: str, key: str, number: int, size: int) -> bytes:
        place = self._root / key[:2] / f"{key}-{number}{SUFFIX}"
        wanted = min(PIECE, size - number * PIECE)
        with contextlib.suppress(OSError):  # not there, or a disk that fails: the source has it
            kept = place.read_bytes()
            data = kept[:-CHECK]
            if len(data) == wanted and kept[-CHECK:] == _check(data):
                self.hits += 1
                _touch(place)
                return data
        self.misses += 1
        data = bytes(self._fs.cat_file(path, start=number * PIECE, end=number * PIECE + wanted))
        if len(data) == wanted:
            self._keep(place, data)
        return data

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


class _File(io.RawIOBase):
    def __init__(self, files: CachedFiles, path: str, size: int) -> None:
        self._files, self._path, self._size, self._at = files, path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self._files.cat_file(self._path, self._at, self._at + len(view))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


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


def _check(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(CHECK, "little")


def _touch(place: Path) -> None:
    with contextlib.suppress(OSError):
        if time.time() - place.stat().st_mtime > 60:  # a minute is close enough to know what was used last
            os.utime(place)
