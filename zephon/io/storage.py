"""Listing and reading bytes: local files directly, everything else through fsspec."""

from __future__ import annotations

import collections
import errno
import functools
import os
import resource
import stat
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import fsspec
from fsspec.implementations.local import LocalFileSystem

from zephon.errors import ConfigError, NotFound

_FEW = 256
_SLOW_S = 100e-6  # seconds to learn a file's size: local disks take a few millionths
_MOST = 16 << 20  # bytes of scratch memory that a thread keeps
_OPEN = 8  # files that a thread keeps open, where there are descriptors for so many
_READ = os.O_RDONLY | os.O_NONBLOCK  # what became a pipe since it was listed is an error, not waited for
_LASTING = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG)


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
    descriptor = os.open(path, _READ)
    try:
        parts, wanted = [], stop - start
        while wanted > 0 and (part := os.pread(descriptor, wanted, start)):
            parts.append(part)
            start += len(part)
            wanted -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        os.close(descriptor)


class _Files:
    """Files of local data, kept open: to open and close one for each chunk would twice give up the interpreter lock."""

    def __init__(self) -> None:
        self._open: collections.OrderedDict[Hashable, int] = collections.OrderedDict()

    def get(self, key: Hashable, path: str) -> int:
        """The descriptor of a file; ``key`` also says which listing it is from, as a path may stand for other data later."""
        if key in self._open:
            self._open.move_to_end(key)
        else:
            self._open[key] = os.open(path, _READ)
            while len(self._open) > _share():
                os.close(self._open.popitem(last=False)[1])
        return self._open[key]

    def forget(self, key: Hashable) -> None:
        if (descriptor := self._open.pop(key, None)) is not None:
            os.close(descriptor)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        for descriptor in self._open.values():
            close(descriptor)


def _share() -> int:
    """Files that this thread may keep: all threads together an eighth of what the process may have open."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _OPEN if most < 0 else min(_OPEN, max(1, most // 8 // threading.active_count()))


class _Own(threading.local):
    """What a thread keeps: files, and memory that is written over and over, as fresh memory is zeroed by the system."""

    def __init__(self) -> None:
        self.files = _Files()
        self._memory = bytearray()

    def memory(self, size: int) -> bytearray:
        if size > _MOST:
            return bytearray(size)
        if size > len(self._memory):
            self._memory = bytearray(size)
        return self._memory


_own = _Own()


def read_scratch(fs: Any, path: str, start: int, stop: int, key: Hashable) -> tuple[bytes | bytearray, int]:
    """As `read_range`, but (memory, length): the memory may be longer, and this thread's next call writes over it.

    Args:
        key: stands for the file as it was listed.
    """
    if not is_local(fs):
        data = read_range(fs, path, start, stop)
        return data, len(data)
    memory = _own.memory(stop - start)
    view = memoryview(memory)[: stop - start]
    try:
        return memory, _fill(view, _own.files.get(key, path), start)
    except OSError:  # kept open too long: a network file system may have let go of it
        _own.files.forget(key)
        return memory, _fill(view, _own.files.get(key, path), start)


def _fill(view: memoryview, descriptor: int, start: int) -> int:
    """Bytes read: as many as the view takes, or fewer at the file's end."""
    count = 0
    while count < len(view) and (got := os.preadv(descriptor, [view[count:]], start + count)):
        count += got
    return count


class Listing(NamedTuple):
    """Files of data: their names below the root, sorted, and their sizes in bytes."""

    fs: Any
    root: str
    names: list[str]
    sizes: list[int]


def list_files(url: str) -> Listing:
    """The files of a directory (recursively), a glob or a single file.

    Hidden files and those that mark a finished job (``_SUCCESS``) are not data and are left out.

    Raises:
        NotFound: nothing is there.
        ConfigError: a folder that may not be read or lies too deep.
    """
    fs, path = filesystem(url)
    try:
        listing = _list(fs, path, url)
    except OSError as error:
        if error.errno not in _LASTING:
            raise  # NotFound, or what another try may mend
        raise unusable(url, str(error)[:300]) from error
    if not listing.names:
        raise _nothing(url, "there is no file of data in it")
    return listing


def _list(fs: Any, path: str, url: str) -> Listing:
    if is_local(fs) and os.path.isdir(path) and not any(mark in path for mark in "*?["):
        return Listing(fs, path, *_walk(path))
    root, found = _listed(fs, path, url)
    root = root or ("/" if is_local(fs) else "")
    named = sorted((full[len(root) :].lstrip("/"), size) for full, size in found.items())
    kept = [(name, size) for name, size in named if not _is_left_out(name)]
    return Listing(fs, root, [name for name, _ in kept], [size for _, size in kept])


def _listed(fs: Any, path: str, url: str) -> tuple[str, dict[str, int]]:
    """The root and the sizes of all files by full path, as fsspec tells them."""
    if any(mark in path for mark in "*?["):
        root = path[: min(path.find(mark) for mark in "*?[" if mark in path)].rpartition("/")[0]
        return root, {str(p): int(i["size"]) for p, i in fs.glob(path, detail=True).items() if _is_file(str(p), i)}
    if not fs.exists(path):
        raise _nothing(url, "no such file or directory")
    if fs.isdir(path):
        return path, {str(p): int(i["size"]) for p, i in fs.find(path, detail=True).items() if i["type"] == "file"}
    return path.rpartition("/")[0], {path: int(fs.size(path))}


def _is_file(path: str, info: dict[str, Any]) -> bool:
    return info["type"] == "file" or (bool(info.get("islink")) and os.path.isfile(path))


def unusable(url: str, why: str) -> ConfigError:
    return ConfigError(
        f"{url!r} cannot be used: {why}",
        follows="some of the data would be left out without a word",
        remedy="correct its rights or names, move it away, or point at the rest with a glob",
    )


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


def _walk(root: str) -> tuple[list[str], list[int]]:
    """Names relative to the root, sorted, and sizes of the files of data below a local directory.

    A listing of 100,000 local files takes half a second, where fs.find takes several: no object is made for a file, and its
    folder's path is looked up once. A link to a folder that it lies in is not followed: all below it is there already.
    """
    names: list[str] = []
    sizes: list[int] = []
    folders: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset())]  # each with what tells those above it
    for below, above in folders:
        try:
            folder = os.open(f"{root}/{below}", os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):  # it went while we looked
            continue
        try:
            itself = os.fstat(folder)
            here = (itself.st_dev, itself.st_ino)
            if here in above and os.path.islink(f"{root}/{below}".rstrip("/")):
                continue
            found = sorted(name for name in os.listdir(folder) if not (name[0] in "._" and _is_mark(name)))
            for name, (size, is_folder) in zip(found, _sizes(folder, found), strict=True):
                if not is_folder and size >= 0:
                    names.append(below + name)
                    sizes.append(size)
                elif is_folder and name[0] != "_":
                    folders.append((f"{below}{name}/", above | {here}))
        finally:
            os.close(folder)
    if len(folders) > 1:
        order = sorted(range(len(names)), key=names.__getitem__)
        names, sizes = [names[i] for i in order], [sizes[i] for i in order]
    return names, sizes


def _sizes(folder: int, names: list[str]) -> list[tuple[int, bool]]:
    """(size, whether it is a folder) of each name; -1 for what is neither file nor folder."""
    first, rest = names[:_FEW], names[_FEW:]
    asked = time.perf_counter()
    sizes = _sizes_one_by_one(folder, first)
    if not rest or time.perf_counter() - asked < _SLOW_S * _FEW:
        return sizes + _sizes_one_by_one(folder, rest)
    # On a network file system an answer takes long, and many questions can be under way at once.
    with ThreadPoolExecutor(32) as pool:
        parts = pool.map(lambda i: _sizes_one_by_one(folder, rest[i : i + _FEW]), range(0, len(rest), _FEW))
        return sizes + [size for part in parts for size in part]


def _sizes_one_by_one(folder: int, names: list[str]) -> list[tuple[int, bool]]:
    sizes = []
    for name in names:
        try:
            found = os.stat(name, dir_fd=folder)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP):
                raise
            sizes.append((-1, False))  # a link to nowhere or to itself, or a file that went while we looked
            continue
        mode = found.st_mode
        sizes.append((found.st_size if stat.S_ISREG(mode) else -1, stat.S_ISDIR(mode)))
    return sizes
