"""What the loader needs of a file system, and file systems made of others."""

from __future__ import annotations

import io
import os
from typing import IO, TYPE_CHECKING, Protocol

from zephon.types import Json

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BUFFER = 1 << 16


class FileSystem(Protocol):
    """What the loader needs of a file system: a small part of fsspec's interface, under its names."""

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes: ...
    def open(self, path: str, mode: str = "rb") -> IO[bytes]: ...
    def info(self, path: str) -> Json: ...
    def exists(self, path: str) -> bool: ...
    def isdir(self, path: str) -> bool: ...
    def size(self, path: str) -> int: ...
    def glob(self, path: str, *, detail: bool) -> dict[str, Json]: ...
    def find(self, path: str, *, detail: bool) -> dict[str, Json]: ...


class Forwarding:
    """A file system that asks another one for whatever it does not do itself."""

    def inner(self) -> FileSystem:
        raise NotImplementedError

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        return self.inner().cat_file(path, start=start, end=end)

    def open(self, path: str, mode: str = "rb") -> IO[bytes]:
        return self.inner().open(path, mode)

    def info(self, path: str) -> Json:
        return self.inner().info(path)

    def exists(self, path: str) -> bool:
        return self.inner().exists(path)

    def isdir(self, path: str) -> bool:
        return self.inner().isdir(path)

    def size(self, path: str) -> int:
        return self.inner().size(path)

    def glob(self, path: str, *, detail: bool) -> dict[str, Json]:
        return self.inner().glob(path, detail=detail)

    def find(self, path: str, *, detail: bool) -> dict[str, Json]:
        return self.inner().find(path, detail=detail)


class RangeFile(io.RawIOBase):
    """A file to read and seek in, of ``size`` bytes, each read of which is one of a range."""

    def __init__(self, fs: FileSystem, path: str, size: int) -> None:
        self._fs, self._path, self._size, self._at = fs, path, size, 0

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
        end = min(self._at + len(view), self._size)
        data = self._fs.cat_file(self._path, self._at, end) if end > self._at else b""
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


def open_ranges(fs: FileSystem, path: str, size: int) -> io.BufferedReader:
    """A file such as Parquet's reader wants."""
    return io.BufferedReader(RangeFile(fs, path, size), BUFFER)
