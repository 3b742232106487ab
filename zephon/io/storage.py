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
    if is_local(fs) and os.path.isdir(path) and not any(mark in path for mark in "*?["):
        root, files = path, _walk(path)
    else:
        root, found = _listed(fs, path, url)
        named = ((full[len(root) :].lstrip("/"), size) for full, size in found.items())
        files = [(name, size) for name, size in named if not _is_left_out(name)]
    if not files:
        raise _nothing(url, "there is no file of data in it")
    return fs, root, sorted(files, key=operator.itemgetter(0))


def _listed(fs: Any, path: str, url: str) -> tuple[str, dict[str, int]]:
    """The root and the sizes of all files by full path, as fsspec tells them."""
    if any(mark in path for mark in "*?["):
        root = path[: min(path.find(mark) for mark in "*?[" if mark in path)].rpartition("/")[0]
        return root, {str(p): int(i["size"]) for p, i in fs.glob(path, detail=True).items() if i["type"] == "file"}
    if not fs.exists(path):
        raise _nothing(url, "no such file or directory")
    if fs.isdir(path):
        return path, {str(p): int(i["size"]) for p, i in fs.find(path, detail=True).items() if i["type"] == "file"}
    return path.rpartition("/")[0], {path: int(fs.size(path))}


def _nothing(url: str, why: str) -> NotFound:
    return NotFound(
        f"{url!r}: {why}",
        follows="there would be nothing to read",
        remedy="check the path, the glob and, in a cluster, that it is mounted on every node",
    )


def _is_left_out(name: str) -> bool:
    *folders, file = name.split("/")
    return (file[0] in "._" and _is_mark(file)) or any(folder.startswith((".", "_")) for folder in folders)


def _is_mark(file: str) -> bool:
    return file[0] == "." or file in ("_SUCCESS", "_metadata", "_common_metadata")


def _walk(root: str) -> list[tuple[str, int]]:
    """Path relative to the root, and size, of each file of data below a local directory.

    With os.scandir a listing of 100,000 local files takes well under a second, where fs.find takes several.
    """
    names: list[str] = []
    entries: list[os.DirEntry[str]] = []
    pending = [""]
    while pending:
        below = pending.pop()
        with os.scandir(f"{root}/{below}") as found:
            for entry in found:
                name = entry.name
                if entry.is_dir():
                    if name[0] not in "._":
                        pending.append(f"{below}{name}/")
                elif entry.is_file() and not (name[0] in "._" and _is_mark(name)):
                    names.append(below + name)
                    entries.append(entry)
    return list(zip(names, _sizes(entries), strict=True))


def _sizes(entries: list[os.DirEntry[str]]) -> list[int]:
    sizes = [entry.stat().st_size for entry in entries[:_FEW]]
    rest = entries[_FEW:]
    asked = time.perf_counter()
    sizes += [entry.stat().st_size for entry in rest[:_FEW]]
    rest, apiece = rest[_FEW:], (time.perf_counter() - asked) / _FEW
    if apiece < _SLOW_S:
        return sizes + [entry.stat().st_size for entry in rest]
    # On a network file system an answer takes long, and many questions can be under way at once.
    with ThreadPoolExecutor(32) as pool:
        parts = pool.map(lambda i: [entry.stat().st_size for entry in rest[i : i + _FEW]], range(0, len(rest), _FEW))
        return sizes + [size for part in parts for size in part]
