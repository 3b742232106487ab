"""WebDataset tars, as Megatron-Energon has them: neighbouring members with one name up to its first dot are a document.

    a/0001.txt  a/0001.json | a/0002.txt  a/0002.json | ...     ->  {"__key__": "a/0001", "txt": "...", "json": {...}}, ...

``txt`` becomes text, ``json`` its value, everything else bytes. A document belongs to the range in which its first member
begins. A tar has no table of contents, so the first chunk of a shard walks over its headers; one that lies far away is fetched
whole.
"""

from __future__ import annotations

import bisect
import io
import tarfile
from typing import NamedTuple

from zephon.errors import DataError
from zephon.fastjson import loads
from zephon.io.decoded import Held
from zephon.io.formats.base import Documents, Shard, bad_document, check_size, read_whole
from zephon.io.storage import is_local, read_range

_STEP = 1 << 20  # bytes looked at in one go after the last member
_whole: Held[bytes] = Held()


class _Sample(NamedTuple):
    """Where a document begins, its key, and (extension, begin, size) of its members."""

    offset: int
    key: str
    members: list[tuple[str, int, int]]


_indexes: Held[list[_Sample]] = Held()


class Tar:
    name = "webdataset"

    def read(self, shard: Shard, start: int, stop: int) -> Documents:
        """The documents whose first member begins in [start, stop); rows count documents. One that cannot be decoded is bad.

        Raises:
            DataError: the shard is damaged or cut short, or the members of a document do not lie side by side.
        """
        try:
            whole: bytes | None = None
            if not is_local(shard.fs):
                whole = _whole.get(shard.key, lambda: read_whole(shard), len)
            samples = _indexes.get(shard.key, lambda: _index(shard, whole), lambda index: 300 * len(index) + 1)
        except DataError:
            raise
        except (tarfile.TarError, ValueError, OSError) as error:
            raise DataError(
                f"{shard.path} cannot be read as a tar: {error}",
                follows="its documents would be dropped silently",
                remedy="restore the shard from its source, or write it again with the members of each document side by side",
            ) from error
        first, last = (bisect.bisect_left(samples, edge, key=lambda sample: sample.offset) for edge in (start, stop))
        rows, records, bad = [], [], []
        for row in range(first, last):
            sample = samples[row]
            try:
                members = [(kind, _bytes(shard, begin, count, whole)) for kind, begin, count in sample.members]
                records.append({"__key__": sample.key, **{kind: _value(kind, data) for kind, data in members}})
                rows.append(row)
            except ValueError as error:
                bad.append(_bad_document(shard, row, sample.key, error))
        begin, end = (samples[edge].offset if edge < len(samples) else shard.size for edge in (first, last))
        return Documents(rows, records, {}, tuple(bad), end - begin)


def _index(shard: Shard, whole: bytes | None) -> list[_Sample]:
    check_size(shard)  # also, to open a pipe would wait for ever
    samples: list[_Sample] = []
    seen: set[str] = set()
    with tarfile.open(shard.path, "r:") if whole is None else tarfile.open(fileobj=io.BytesIO(whole), mode="r:") as tar:
        for member in tar:
            folder, _, file = member.name.rpartition("/")
            stem, dot, kind = file.partition(".")
            if member.isdir() or not stem or not dot:
                continue  # folders, hidden files and what has no extension
            if not member.isfile() or member.issparse():
                raise ValueError(f"member {member.name!r} at byte {member.offset} is a link, a device or sparse")
            key = f"{folder}/{stem}" if folder else stem
            if not samples or samples[-1].key != key:
                if key in seen:
                    raise ValueError(f"members of {key!r} lie apart from each other")
                seen.add(key)
                samples.append(_Sample(member.offset, key, []))
            if kind.lower() in [known for known, _, _ in samples[-1].members]:
                raise ValueError(f"{key!r} has two members {kind!r}")
            samples[-1].members.append((kind.lower(), member.offset_data, member.size))
        end = tar.offset  # the library ends silently at whatever is no header
    if end + tarfile.BLOCKSIZE > shard.size:
        raise ValueError("it ends without the mark of its end")
    _check_end(shard, whole, end)
    if not samples:
        raise ValueError("it holds no document")
    return samples


def _check_end(shard: Shard, whole: bytes | None, end: int) -> None:
    """Only zeros lie after the last member. Anything else means a damaged header, or a second tar."""
    for begin in range(end, shard.size, _STEP):
        after = _bytes(shard, begin, min(_STEP, shard.size - begin), whole)
        if after.count(0) < len(after):
            at = begin + len(after) - len(after.lstrip(b"\0"))
            raise ValueError(f"its members end at byte {end}, but there is data at byte {at}")


def _bytes(shard: Shard, begin: int, count: int, whole: bytes | None) -> bytes:
    return whole[begin : begin + count] if whole is not None else read_range(shard.fs, shard.path, begin, begin + count)


def _value(kind: str, data: bytes) -> object:
    if kind == "txt":
        return data.decode()
    return loads(data) if kind == "json" else data


def _bad_document(shard: Shard, row: int, key: str, cause: Exception) -> DataError:
    return bad_document(
        shard,
        row,
        f"a member cannot be decoded: {type(cause).__name__}",
        f"document {key!r} of {shard.path} cannot be decoded: {cause}",
        remedy="repair it, remove it before a new run begins",
    )
