"""What a format is, and which there are.

A format turns a range of a shard into documents. The one rule for all of them: a document belongs to the range in which
its first unit lies, so any cut of a shard into ranges gives every document exactly once.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Hashable
from typing import NamedTuple, Protocol

from zephon.errors import ConfigError, DataError, ErrorAddress, address_error, nearest
from zephon.io.filesystem import FileSystem
from zephon.io.in_memory import InMemoryShard
from zephon.io.storage import is_local, other_size, read_range
from zephon.io.suffixes import refuse_tables
from zephon.types import Column, Json


@dataclasses.dataclass(slots=True, eq=False)
class Shard:
    """One shard of a dataset, as its format sees it. Not changed by anybody; it is not frozen since one is made for each range
    that is read, and a chunk may lie in hundreds of small shards: a frozen one takes four times as long to make.

    Args:
        number: its index in the dataset, which errors about its documents carry.
        path: where it lies on the file system.
        size: in the format's units, as it was listed.
        listing: a token of the dataset's listing: a later one, perhaps of other data, has another token.
        fs: the file system; that of this machine, which nobody asks, for rows in memory.
        memory: the rows of a shard in memory, else None.
        where: a filter that documents must pass; a format may leave out those that do not, and need not.
    """

    number: int
    path: str
    size: int
    listing: Hashable
    fs: FileSystem
    memory: InMemoryShard | None = None
    where: str | None = None

    @property
    def key(self) -> tuple[Hashable, int]:
        """Stands for the shard as it was listed: what is decoded of it may be held under this key."""
        return self.listing, self.number


class Documents(NamedTuple):
    """What a format read: row names, and the records or columns that belong to them (see `Columns`).

    Plain lists, of which `zephon.io.reader` makes one `Columns`: a chunk may lie in hundreds of small shards, and an array for
    each of them would cost more than reading it. ``bad`` holds an addressed error for each document that could not be read
    while others could. ``size`` is what all of them take, in the shard's units, also where the last one goes on behind the
    range that was read.
    """

    rows: list[int]
    records: list[Json] | None
    fields: dict[str, Column]
    bad: tuple[DataError, ...] = ()
    size: int = 0


def bad_document(
    shard: Shard, row: int, kind: str, what: str, *, remedy: str, follows: str = "the document would be dropped silently"
) -> DataError:
    """An error about one document, which can be dropped as well. See `ErrorAddress` for ``kind``."""
    out = "or drop such documents: on_error='quarantine' (data.on_error in an experiment)"
    error = DataError(what, follows=follows, remedy=f"{remedy}, {out}")
    address_error(error, ErrorAddress(shard.number, row, kind=kind))
    return error


def check_size(shard: Shard) -> None:
    """Raises DataError where a local file is not as long as it was listed: it has grown, was cut or replaced, or is no file."""
    if is_local(shard.fs):
        size = os.stat(shard.path).st_size
        if size != shard.size:
            raise other_size(shard.path, f"has {size} bytes", shard.size)


def read_whole(shard: Shard) -> bytes:
    """All bytes of a file. Raises DataError where they are not as many as were listed."""
    data = read_range(shard.fs, shard.path, 0, shard.size + 1)  # one more, to see that it has not grown
    if len(data) != shard.size:
        raise other_size(shard.path, f"has {len(data)} bytes" if len(data) < shard.size else "has grown", shard.size)
    return data


_STARTS = {
    b"\x1f\x8b": "compressed with gzip",
    b"\x28\xb5\x2f\xfd": "compressed with Zstandard",
    b"\xfd7zXZ": "compressed with xz",
    b"PK\x03\x04": "a zip archive",
    b"PAR1": "Parquet",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"version https://git-lfs.github.com/spec/": "a pointer of Git LFS to data that was not fetched",
}


def not_text(head: bytes) -> str | None:
    """What a file that begins like this is, where that is something else than text."""
    known = next((kind for start, kind in _STARTS.items() if head.startswith(start)), None)
    if known is None and head[4:10] == b"1AY&SY":
        return "compressed with bzip2"
    return "UTF-16" if known is None and b"\0" in head[:2] else known


def is_array(head: bytes) -> bool:
    """Whether a file that begins like this is one JSON array of objects."""
    rest = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return rest[:1] == b"[" and rest[1:].lstrip()[:1] in (b"{", b"")


def array_error(path: str) -> DataError:
    return DataError(
        f"{path} is one JSON array, and not JSON Lines",
        follows="all of it would have to be in memory before its first document is read",
        remedy=f"write one object a line: jq -c '.[]' {path.rpartition('/')[2]} > data.jsonl",
    )


def refuse_array(fs: FileSystem, path: str) -> None:
    """Raises ConfigError where a file, which is not compressed, is one JSON array of objects."""
    if is_array(read_range(fs, path, 0, 64)):
        error = array_error(path)
        raise ConfigError(error.what, follows=error.follows, remedy=error.remedy)


class Format(Protocol):
    """Reads documents. Instances are stateless and may be used from several threads."""

    @property
    def name(self) -> str: ...

    def read(self, shard: Shard, start: int, stop: int) -> Documents:
        """The documents whose first unit lies in [start, stop) of the shard."""
        ...


_HOMES = {
    "jsonl": ("jsonl", "Jsonl"),
    "text": ("text", "Text"),
    "parquet": ("parquet", "Parquet"),
    "arrow": ("arrow", "Arrow"),
    "mds": ("mds", "Mds"),
    "webdataset": ("tar", "Tar"),
    "memory": ("memory", "Memory"),
}


def format_named(name: str) -> Format:
    """The format of this name; the others are not loaded. Raises ConfigError for an unknown one."""
    refuse_tables(name, f"format {name!r}")
    if name not in _HOMES:
        raise ConfigError(f"format {name!r} is not supported", remedy=nearest(name, _HOMES))
    module, kind = _HOMES[name]
    chosen: Format = getattr(importlib.import_module(f"zephon.io.formats.{module}"), kind)()
    return chosen
