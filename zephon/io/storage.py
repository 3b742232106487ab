"""Listing and reading bytes: local files directly, everything else through fsspec."""

from __future__ import annotations

import functools
import operator
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import fsspec
from fsspec.implementations.local import LocalFileSystem

from zephon.errors import ConfigError, NotFound

_FEW = 256
_SLOW_S = 100e-6  # seconds to learn a file's size: local disks take a few millionths
_MOST = 16 << 20  # bytes of scratch memory that a thread keeps


@functools.lru_cache(maxsize=64)
def filesystem(url: str) -> tuple[Any, str]:
    """The file system of a URL and the path on it.

    Raises:
        ConfigError: the scheme is unknown to fsspec or its package is not installed.
    """
    try:
        fs, path = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as error:
        scheme = urlsplit(url).scheme
        raise ConfigError(
            f"cannot open {url!r}: {error}",
            follows="no data could be read",
            remedy=f"check the spelling of the scheme {scheme!r}, or install the fsspec package that provides it",
        ) from error
    return fs, path


def is_local(fs: Any) -> bool:
    return isinstance(fs, LocalFileSystem)


def read_range(fs: Any, path: str, start: int, stop: int) -> bytes:
    """Bytes [start, stop) of a file; shorter at its end."""
    if not is_local(fs):
        return bytes(fs.cat_file(path, start=start, end=stop))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        parts, wanted = [], stop - start
        while wanted > 0 and (part := os.pread(descriptor, wanted, start)):
            parts.append(part)
            start += len(part)
            wanted -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        os.close(descriptor)


class _Scratch(threading.local):
    """Memory of one thread that is written over and over: fresh memory of such sizes is zeroed by the system each time."""

    def __init__(self) -> None:
        self.memory = bytearray()

    def of(self, size: int) -> bytearray:
        if size > _MOST:
            return bytearray(size)
        if size > len(self.memory):
            self.memory = bytearray(size)
        return self.memory


_scratch = _Scratch()


def read_scratch(fs: Any, path: str, start: int, stop: int) -> tuple[bytes | bytearray, int]:
    """As `read_range`, but (memory, length): the memory may be longer, and this thread's next call writes over it."""
    if not is_local(fs):
        data = read_range(fs, path, start, stop)
        return data, len(data)
    memory = _scratch.of(stop - start)
    view, count = memoryview(memory), 0
    descriptor = os.open(path, os.O_RDONLY)
    try:
        while count < stop - start and (got := os.preadv(descriptor, [view[count : stop - start]], start + count)):
            count += got
    finally:
        os.close(descriptor)
    return memory, count


def list_files(url: str) -> tuple[Any, str, list[tuple[str, int]]]:
    """The files of a directory (recursively), a glob or a single file.

    Hidden files and those that mark a finished job (``_SUCCESS``) are not data and are left out.

    Returns:
        (file system, root path, [(path relative to root, size in bytes)] sorted by path).

    Raises:
        NotFound: nothing is there.
    """
    fs, path = filesystem(url)
    if any(mark in path for mark in "*?["):
        root = path[: min(path.find(mark) for mark in "*?[" if mark in path)].rpartition("/")[0]
        found = {str(p): int(i["size"]) for p, i in fs.glob(path, detail=True).items() if i["type"] == "file"}
    elif is_local(fs) and os.path.isdir(path):
        root, found = path, _walk(path)
    elif not fs.exists(path):
        raise _nothing(url, "no such file or directory")
    elif fs.isdir(path):
        root = path
        found = {str(p): int(i["size"]) for p, i in fs.find(path, detail=True).items() if i["type"] == "file"}
    else:
        root, found = path.rpartition("/")[0], {path: int(fs.size(path))}
    files = []
    for full, size in found.items():
        name = full[len(root) :].lstrip("/")
        # Nearly all names have no such mark, so that 100,000 of them are not taken apart for nothing.
        marked = name[0] in "._" or "/." in name or "/_" in name
        if not marked or not _is_left_out(name):
            files.append((name, size))
    if not files:
        raise _nothing(url, "there is no file of data in it")
    return fs, root, sorted(files, key=operator.itemgetter(0))


def _nothing(url: str, why: str) -> NotFound:
    return NotFound(
        f"{url!r}: {why}",
        follows="there would be nothing to read",
        remedy="check the path, the glob and, in a cluster, that it is mounted on every node",
    )


def _is_left_out(name: str) -> bool:
    folders, _, file = name.rpartition("/")
    marker = file.startswith(".") or file in ("_SUCCESS", "_metadata", "_common_metadata")
    return marker or any(part.startswith((".", "_")) for part in folders.split("/"))


def _walk(root: str) -> dict[str, int]:
    # os.scandir: a listing of 100,000 local files in well under a second, where fs.find takes several.
    found, pending = [], [root]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    pending.append(entry.path)
                elif entry.is_file():
                    found.append(entry)
    sizes = [entry.stat().st_size for entry in found[:_FEW]]
    rest = found[_FEW:]
    asked = time.perf_counter()
    sizes += [entry.stat().st_size for entry in rest[:_FEW]]
    rest, apiece = rest[_FEW:], (time.perf_counter() - asked) / _FEW
    if apiece < _SLOW_S:
        sizes += [entry.stat().st_size for entry in rest]
    else:
        # On a network file system an answer takes long, and many questions can be under way at once.
        with ThreadPoolExecutor(32) as pool:
            parts = pool.map(lambda i: [entry.stat().st_size for entry in rest[i : i + _FEW]], range(0, len(rest), _FEW))
            sizes += [size for part in parts for size in part]
    return dict(zip((entry.path for entry in found), sizes, strict=True))
