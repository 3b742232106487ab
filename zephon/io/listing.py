"""Listing files of data: names and sizes, sorted. Local folders are walked directly, everything else is asked of fsspec."""

from __future__ import annotations

import errno
import glob
import itertools
import os
import posixpath
import stat
import time
from collections.abc import Hashable
from typing import NamedTuple

from zephon.errors import ConfigError, NotFound
from zephon.io.filesystem import FileSystem
from zephon.io.remote import Remote
from zephon.io.storage import filesystem, is_local
from zephon.io.suffixes import looks_like_data
from zephon.types import Json

_FEW = 256
_SLOW_S = 100e-6  # seconds to learn a file's size: local disks take a few millionths
_LASTING = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG)


class Listing(NamedTuple):
    """Files of data: their names below the root, sorted, and their sizes in bytes.

    ``skipped`` are names that look like data below hidden folders, or are hidden; ``files`` holds what stands for the real file
    behind each name.
    """

    fs: FileSystem
    root: str
    names: list[str]
    sizes: list[int]
    skipped: list[str]
    files: list[Hashable]


def list_files(url: str) -> Listing:
    """The files of a directory (recursively), a glob or a single file.

    Hidden files and those that mark a finished job (``_SUCCESS``) are not data and are skipped.

    Raises:
        NotFound: nothing is there.
        ConfigError: a folder that may not be read or lies too deep.
    """
    fs, path = filesystem(url)
    try:
        listing = _list(fs, path, url)
    except OSError as error:
        if error.errno not in _LASTING:
            raise  # NotFound, or an error that another try may not meet
        raise unusable(url, str(error)[:300]) from error
    if not listing.names:
        raise _nothing(url, "it holds no data file")
    return listing


def _list(fs: FileSystem, path: str, url: str) -> Listing:
    if is_local(fs) and os.path.isdir(path):
        return Listing(fs, path, *_walk(path))
    root, by_path = _listed(fs, path, url)
    root = root or ("/" if is_local(fs) else "")
    named = sorted((full[len(root) :].lstrip("/"), size) for full, size in by_path.items())
    kept = [(name, size) for name, size in named if not _is_skipped(name)]
    skipped = [name for name, _ in named if _is_skipped(name) and _hides_data(name)]
    files = [_real_file(fs, f"{root.rstrip('/')}/{name}" if root else name) for name, _ in kept]
    return Listing(fs, root, [name for name, _ in kept], [size for _, size in kept], skipped, files)


def _real_file(fs: FileSystem, path: str) -> Hashable:
    """What stands for a file whatever it is called; for a far one its address and content, as far as a store says them."""
    if is_local(fs):
        status = os.stat(path)
        return status.st_ino + (status.st_dev << 64)
    if isinstance(fs, Remote):
        scheme, _, address = fs.url(path).partition("://")
        return scheme, posixpath.normpath(address), fs.mark(path)
    return path


def _listed(fs: FileSystem, path: str, url: str) -> tuple[str, dict[str, int]]:
    """The root and the sizes of all files by full path, as fsspec gives them."""
    if _has_marks(path) and not fs.exists(path):  # what exists under this very name is that thing
        path = _with_folders_named(path) if is_local(fs) else path
        root = path[: min(path.find(mark) for mark in "*?[" if mark in path)].rpartition("/")[0]
        matches = {str(p): i for p, i in fs.glob(path, detail=True).items()}
        return root, {p: int(i["size"]) for p, i in matches.items() if _is_file(p, i)}
    if not fs.exists(path):
        raise _nothing(url, "no such file or directory")
    if fs.isdir(path):
        return path, {str(p): int(i["size"]) for p, i in fs.find(path, detail=True).items() if i["type"] == "file"}
    if is_local(fs) and not os.path.isfile(path):
        raise _no_file(path)
    return path.rpartition("/")[0], {path: int(fs.size(path))}


def _has_marks(path: str) -> bool:
    return any(mark in path for mark in "*?[")


def _with_folders_named(pattern: str) -> str:
    """A glob whose first folders, as far as they exist under their very names, stand for themselves."""
    folder, rest = "", pattern
    while "/" in rest:
        name, _, after = rest.partition("/")
        if not os.path.isdir(f"{folder}{name}/"):
            break
        folder, rest = f"{folder}{name}/", after
    return glob.escape(folder) + rest


def _is_file(path: str, info: Json) -> bool:
    """Raises ConfigError for what is neither a file nor a folder, and looks like data."""
    if info["type"] == "other" and not info.get("islink") and looks_like_data(path):
        raise _no_file(path)
    return info["type"] == "file" or (bool(info.get("islink")) and os.path.isfile(path))


def unusable(url: str, why: str) -> ConfigError:
    return ConfigError(
        f"{url!r} cannot be used: {why}",
        follows="some of the data would be dropped silently",
        remedy="correct its rights or names, move it away, or point at the other files with a glob",
    )


def _no_file(name: str) -> ConfigError:
    return unusable(name, "it is a pipe, a socket or a device, and no regular file")


def _nothing(url: str, why: str) -> NotFound:
    return NotFound(
        f"{url!r}: {why}",
        follows="the run would train without this data",
        remedy="check the path, the glob and, in a cluster, that it is mounted on every node",
    )


def _is_skipped(name: str) -> bool:
    *folders, file = name.split("/")
    return (file[0] in "._" and _is_mark(file)) or any(folder.startswith((".", "_")) for folder in folders)


def _is_mark(file: str) -> bool:
    return file[0] == "." or file in ("_SUCCESS", "_metadata", "_common_metadata")


def _hides_data(name: str) -> bool:
    """Whether a name that is skipped looks like data. Some systems put a small file ``._NAME`` beside each other one."""
    return looks_like_data(name) and not name.rpartition("/")[2].startswith("._")


def _hidden_data(root: str, name: str) -> list[str]:
    """Files that look like data under a name that is skipped, relative to the root."""
    path = f"{root}/{name}"
    if not os.path.isdir(path):
        return [name] if _hides_data(name) and os.path.isfile(path) else []
    below = [os.path.relpath(os.path.join(folder, file), root) for folder, _, files in os.walk(path) for file in files]
    return sorted(file for file in below if _hides_data(file))


def _walk(root: str) -> tuple[list[str], list[int], list[str], list[Hashable]]:
    """Names relative to the root, sorted, sizes, skipped names and real files of the files of data below a local directory.

    A listing of 100,000 local files takes half a second, where fs.find takes several: no object is made for a file, and its
    folder's path is looked up once. A link to a folder above it is not followed: its files are listed already.
    """
    names: list[str] = []
    sizes: list[int] = []
    skipped: list[str] = []
    real: list[Hashable] = []
    folders: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset())]  # each with (device, inode) of those above
    for below, above in folders:
        try:
            folder = os.open(f"{root}/{below}", os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):  # it was removed meanwhile
            continue
        try:
            itself = os.fstat(folder)
            here = (itself.st_dev, itself.st_ino)
            if here in above and os.path.islink(f"{root}/{below}".rstrip("/")):
                continue
            listed = sorted(os.listdir(folder))
            entries = [name for name in listed if not (name[0] in "._" and _is_mark(name))]
            files, lengths, inner, inodes = _sizes(folder, entries)
            hidden = [name for name in listed if name[0] == "."] + [name for name in inner if name[0] == "_"]
            skipped += [name for entry in hidden for name in _hidden_data(root, below + entry)]
            real += inodes
            names += [below + name for name in files] if below else files
            sizes += lengths
            folders += [(f"{below}{name}/", above | {here}) for name in inner if name[0] != "_"]
        finally:
            os.close(folder)
    if len(folders) > 1:
        order = sorted(range(len(names)), key=names.__getitem__)
        names, sizes, real = [names[i] for i in order], [sizes[i] for i in order], [real[i] for i in order]
    return names, sizes, skipped, real


_Entries = tuple[list[str], list[int], list[str], list[Hashable]]  # files, their sizes, folders, real files; no others


def _sizes(folder: int, names: list[str]) -> _Entries:
    first, others = names[:_FEW], names[_FEW:]
    asked = time.perf_counter()
    entries = _sizes_one_by_one(folder, first)
    if not others:
        return entries
    if time.perf_counter() - asked < _SLOW_S * _FEW:
        parts = [entries, _sizes_one_by_one(folder, others)]
    else:  # on a network file system an answer takes long, and many questions can be under way at once
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(32) as pool:
            groups = [others[i : i + _FEW] for i in range(0, len(others), _FEW)]
            parts = [entries, *pool.map(lambda group: _sizes_one_by_one(folder, group), groups)]
    files, sizes, folders, real = zip(*parts, strict=True)
    chain = itertools.chain.from_iterable
    return [*chain(files)], [*chain(sizes)], [*chain(folders)], [*chain(real)]


def _sizes_one_by_one(folder: int, names: list[str]) -> _Entries:
    files: list[str] = []
    sizes: list[int] = []
    folders: list[str] = []
    real: list[Hashable] = []
    for name in names:
        try:
            status = os.stat(name, dir_fd=folder)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP):
                raise
            continue  # a link to nowhere or to itself, or a file that was removed meanwhile
        mode = status.st_mode
        if stat.S_ISREG(mode):
            files.append(name)
            sizes.append(status.st_size)
            real.append(status.st_ino + (status.st_dev << 64))
        elif stat.S_ISDIR(mode):
            folders.append(name)
        elif looks_like_data(name):
            raise _no_file(name)
    return files, sizes, folders, real
