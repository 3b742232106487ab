"""JSON Lines: one JSON object a line. A line belongs to the range in which its first byte lies.

range 1 |{"text": "a"}\\n{"te|xt": "bb"}\\n{"text": "c"}| range 2
         ^ document 0    ^ document 1 (read past the cut)   range 2 starts at its first line: document 2
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from zephon.errors import DataError
from zephon.fastjson import loads
from zephon.io.decoded import Held, unzstd
from zephon.io.formats.base import Documents, Shard, array_error, bad_document, is_array, not_text, read_whole
from zephon.io.storage import other_size, read_range, read_scratch
from zephon.io.suffixes import is_compressed
from zephon.types import Json

_TAIL = 1 << 14
_held: Held[bytes] = Held()
_BOM = b"\xef\xbb\xbf"
_LINE_FEED = 0x0A
_MARKUP = (b"<!doctype", b"<html", b"<?xml")


class Jsonl:
    name = "jsonl"

    def read(self, shard: Shard, start: int, stop: int) -> Documents:
        """Documents as dicts; rows are byte offsets. Blank lines and a byte order mark are skipped.

        Raises:
            DataError: a line is not one JSON object, or a compressed shard is truncated; names the address and the line.
        """
        if _is_compressed(shard):
            content = _held.get(shard.key, lambda: _decompress(shard), len)
            # Compressed shards are planned by their compressed size and cut into equal parts of the decoded content.
            start, stop = start * len(content) // shard.size, stop * len(content) // shard.size
            documents = _parse(shard, _lines_from(content, start, stop))
            return documents._replace(size=documents.size * shard.size // max(1, len(content)))
        return _parse(shard, _lines_between(shard, start, stop))


class _Lines(NamedTuple):
    """Whole lines: ``data[first:last]``, the first of which is at this offset of the shard."""

    offset: int
    data: bytes | bytearray
    first: int
    last: int


def _lines_between(shard: Shard, start: int, stop: int) -> _Lines:
    """The whole lines that begin in [start, stop)."""
    begin = max(start - 1, 0)  # one byte back: a range that follows a line feed starts with a document of its own
    wanted = min(stop + _TAIL, shard.size)  # this mostly includes the end of the last line
    data: bytes | bytearray
    data, count = read_scratch(shard.fs, shard.path, begin, wanted, shard.key, shard.size)
    if begin + count < wanted:
        raise other_size(shard.path, f"ends at byte {begin + count}", shard.size)
    first = data.find(b"\n", 0, count) + 1 if start > 0 else 0
    if start > 0 and (first == 0 or begin + first >= stop):
        return _Lines(start, b"", 0, 0)
    last = data.find(b"\n", stop - 1 - begin, count) + 1
    while not last and begin + count < shard.size:
        more = read_range(shard.fs, shard.path, begin + count, min(begin + 2 * count, shard.size))
        if not more:
            break
        last = more.find(b"\n") + 1
        last = count + last if last else 0
        data = bytes(memoryview(data)[:count]) + more
        count = len(data)
    return _Lines(begin + first, data, first, last or count)


def _lines_from(content: bytes, start: int, stop: int) -> _Lines:
    first = content.find(b"\n", start - 1) + 1 if start > 0 else 0
    if first >= stop or (start > 0 and first == 0):
        return _Lines(start, b"", 0, 0)
    end = content.find(b"\n", stop - 1)
    return _Lines(first, content, first, len(content) if end < 0 else end + 1)


def _is_compressed(shard: Shard) -> bool:
    return is_compressed(shard.path)


def _decompress(shard: Shard) -> bytes:
    raw = read_whole(shard)
    try:
        return gzip.decompress(raw) if shard.path.lower().endswith(".gz") else unzstd(raw)
    except (EOFError, OSError, zlib.error, ValueError) as error:
        raise DataError(
            f"{shard.path} cannot be decompressed: {error}",
            follows="the documents after the damage would be dropped silently",
            remedy="restore the shard from its source",
        ) from error


def _parse(shard: Shard, lines: _Lines) -> Documents:
    offset, data, first, last = lines
    if offset == 0 and data.startswith(_BOM, first, last):
        first, offset = first + len(_BOM), len(_BOM)
    ends, end = [], data.find(b"\n", first, last)
    while end >= 0:
        ends.append(end)
        end = data.find(b"\n", end + 1, last)
    if first < last and data[last - 1] != _LINE_FEED:
        ends.append(last)
    begins = [first, *(end + 1 for end in ends[:-1])]
    view, shift = memoryview(data), offset - first
    try:
        records = [loads(view[begin:end]) for begin, end in zip(begins, ends, strict=False)]
    except ValueError:
        records = [None]
    if {*map(type, records)} <= {dict}:
        return Documents([begin + shift for begin in begins[: len(ends)]], records, {}, (), last - first)
    documents = _one_by_one(shard, offset, [bytes(view[begin:end]) for begin, end in zip(begins, ends, strict=False)])
    return documents._replace(size=last - first)


def _one_by_one(shard: Shard, offset: int, lines: Sequence[bytes]) -> Documents:
    """For lines of which some are bad or blank: the good documents, and an error for each bad one.

    Raises:
        DataError: the shard is no text at all.
    """
    _check_is_text(shard, lines[0] if offset == 0 and lines else b"")
    rows: list[int] = []
    records: list[Json] = []
    bad: list[DataError] = []
    for line in lines:
        begin, offset = offset, offset + len(line) + 1
        try:
            record = loads(line)
        except ValueError as error:
            if line.strip():
                bad.append(_bad_line(shard, begin, "is not one JSON object", f": {error}"))
            continue
        if type(record) is dict:
            records.append(record)
            rows.append(begin)
        else:
            why = f"holds a JSON {type(record).__name__} where an object is needed"
            bad.append(_bad_line(shard, begin, why))
    return Documents(rows, records, {}, tuple(bad))


def _check_is_text(shard: Shard, first: bytes) -> None:
    """Asked only where a line is bad, as whatever is no text has bad lines. ``first``: the shard's first line, if at hand."""
    head = first if first or _is_compressed(shard) else read_range(shard.fs, shard.path, 0, 64)
    if is_array(head):
        raise array_error(shard.path)
    what = not_text(head)
    if what is None and head.lstrip().lower().startswith(_MARKUP):
        what = "a page of HTML or XML, as a server answers when it refuses"
    if what is not None:
        raise DataError(
            f"{shard.path} is no JSON Lines: it begins as what is {what}",
            follows="its documents would be dropped as a few bad lines",
            remedy="fetch or convert the file, or give it the suffix of what it is",
        )


def _bad_line(shard: Shard, offset: int, why: str, detail: str = "") -> DataError:
    return bad_document(
        shard,
        offset,
        f"a line {why}",
        f"line at byte {offset} of {shard.path}{_line_number(shard, offset)} {why}{detail}",
        remedy="repair the line, remove it before a new run begins",
    )


def _line_number(shard: Shard, offset: int) -> str:
    if offset > 1 << 28 or _is_compressed(shard):
        return ""  # counting lines would read too much for a message
    before = read_range(shard.fs, shard.path, 0, offset)
    return f" (line {before.count(bytes([10])) + 1})"
