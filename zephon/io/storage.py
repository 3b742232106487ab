"""Reading bytes: local files directly, everything else through fsspec."""

from __future__ import annotations

import collections
import functools
import os
import resource
import stat
import threading
from collections.abc import Callable, Hashable
from urllib.parse import urlsplit

from zephon.errors import ConfigError, DataError, install_line_of
from zephon.io.filesystem import FileSystem, Forwarding
from zephon.io.remote import Remote

_MOST = 16 << 20  # bytes of scratch memory that a thread keeps
_OPEN = 8  # files that a thread keeps open, where there are descriptors for so many
_READ = os.O_RDONLY | os.O_NONBLOCK  # a file that has become a pipe is then an error, not a wait


class Local(Forwarding):
    """The file system of this machine, whose files are read directly. For the rest it asks fsspec, and loads it only then: that
    takes a tenth of a second, for which the first batch would wait."""

    def inner(self) -> FileSystem:
        import fsspec

        local: FileSystem = fsspec.filesystem("file")
        return local

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Local, ()


LOCAL = Local()


def filesystem(url: str) -> tuple[FileSystem, str]:
    """The file system of a URL and the path on it.

    Raises:
        ConfigError: the scheme is unknown to fsspec or its package is not installed.
    """
    if "://" not in url and "::" not in url:
        path = os.path.join(os.getcwd(), os.path.expanduser(url))
        return LOCAL, path.rstrip("/") or "/"
    fs, path = _through_fsspec(url)
    return (fs if is_local(fs) else Remote(fs)), path


@functools.lru_cache(maxsize=64)
def _through_fsspec(url: str) -> tuple[FileSystem, str]:
    import fsspec
    from fsspec.implementations.local import LocalFileSystem

    try:
        fs, path = fsspec.core.url_to_fs(url, use_listings_cache=False)  # a second listing is of what is there then
    except (ValueError, ImportError) as error:
        scheme, line = urlsplit(url).scheme, install_line_of(url)
        raise ConfigError(
            f"cannot open {url!r}: {error}",
            remedy=line or f"check the spelling of the scheme {scheme!r}, or install the fsspec package that provides it",
        ) from error
    return (LOCAL if isinstance(fs, LocalFileSystem) else fs), path


def forget_file_systems() -> None:
    """Makes the file system of each URL again: credentials or an endpoint are others now."""
    _through_fsspec.cache_clear()


def is_local(fs: FileSystem | None) -> bool:
    return isinstance(fs, Local)


def other_size(path: str, actual: str, listed: int) -> DataError:
    """The error that a file is not as long as the listing said."""
    return DataError(
        f"{path} {actual}, but the listing said {listed} bytes",
        follows="documents would be dropped or cut silently",
        remedy="restore the file, or start a new run on the data as it is now",
    )


def _what_it_is(status: os.stat_result) -> str:
    return f"has {status.st_size} bytes" if stat.S_ISREG(status.st_mode) else "is no regular file"


def read_range(fs: FileSystem, path: str, start: int, stop: int) -> bytes:
    """Bytes [start, stop) of a file; shorter at its end."""
    if not is_local(fs):
        return bytes(fs.cat_file(path, start=start, end=stop))
    descriptor = os.open(path, _READ)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):  # the system's own error tells of a folder
            raise other_size(path, _what_it_is(status), stop)
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

    def get(self, key: Hashable, path: str, size: int) -> int:
        """The descriptor of a file; ``key`` also says which listing it is from, as a path may stand for other data later.

        Raises:
            DataError: a file that is opened now is not of this ``size``.
        """
        if key in self._open:
            self._open.move_to_end(key)
        else:
            descriptor = os.open(path, _READ)
            status = os.fstat(descriptor)
            if not stat.S_ISDIR(status.st_mode) and (not stat.S_ISREG(status.st_mode) or status.st_size != size):
                os.close(descriptor)
                raise other_size(path, _what_it_is(status), size)
            self._open[key] = descriptor
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


def read_scratch(fs: FileSystem, path: str, start: int, stop: int, key: Hashable, size: int) -> tuple[bytes | bytearray, int]:
    """As `read_range`, but (memory, length): the memory may be longer, and this thread's next call writes over it.

    Args:
        key: stands for the file as it was listed.
        size: of the file as it was listed.
    """
    if not is_local(fs):
        data = read_range(fs, path, start, stop)
        return data, len(data)
    memory = _own.memory(stop - start)
    view = memoryview(memory)[: stop - start]
    try:
        return memory, _fill(view, _own.files.get(key, path, size), start)
    except OSError:  # kept open too long: a network file system may have let go of it
        _own.files.forget(key)
        return memory, _fill(view, _own.files.get(key, path, size), start)


def _fill(view: memoryview, descriptor: int, start: int) -> int:
    """Bytes read: as many as the view takes, or fewer at the file's end."""
    count = 0
    while count < len(view) and (got := os.preadv(descriptor, [view[count:]], start + count)):
        count += got
    return count
