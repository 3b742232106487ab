"""JSON Lines: one JSON object a line. A line belongs to the range in which its first byte lies.

range 1 |{"text": "a"}\\n{"te|xt": "bb"}\\n{"text": "c"}| range 2
         ^ document 0    ^ document 1 (read past the cut)   range 2 starts at its first line: document 2
"""

from __future__ import annotations

import gzip
import zlib
from typing import TYPE_CHECKING, Any

import orjson

from zephon.errors import DataError
from zephon.io.formats import Documents
from zephon.io.held import Held, listing_of
from zephon.io.storage import read_range

if TYPE_CHECKING:
    from zephon.io.dataset import Dataset

_TAIL = 1 << 16
_held = Held()
_BOM = b"\xef\xbb\xbf"


class Jsonl:
    name = "jsonl"

    def read(self, dataset: Dataset, shard: int, start: int, stop: int) -> Documents:
        """Documents as dicts; rows are byte offsets. Blank lines and a byte order mark are passed over.

        Raises:
            DataError: a line is not one JSON object, or a compressed shard is truncated; names the address and the line.
        """
        if dataset.shards[shard].lower().endswith((".gz", ".zst")):
            size = int(dataset.sizes[shard])
            content = _held.get((listing_of(dataset), shard), lambda: _decompress(dataset, shard), len)
            # Compressed shards are planned by their compressed size and cut into equal parts of the decoded content.
            start, stop = start * len(content) // size, stop * len(content) // size
            offset, data = _lines_from(content, start, stop)
        else:
            offset, data = _lines_between(dataset, shard, start, stop)
        return _parse(dataset, shard, offset, data)


def _lines_between(dataset: Dataset, shard: int, start: int, stop: int) -> tuple[int, bytes]:
    """The whole lines that begin in [start, stop) and the offset of the first of them."""
    path, size = dataset.path(shard), int(dataset.sizes[shard])
    begin = max(start - 1, 0)  # one byte back: a range that follows a line feed starts with a document of its own
    wanted = min(stop + _TAIL, size)  # mostly the end of the last line comes along
    data = read_range(dataset.fs, path, begin, wanted)
    if begin + len(data) < wanted:
        raise DataError(
            f"{path} ends at byte {begin + len(data)}, but the listing said {size} bytes",
            follows="documents would be lost without a word",
            remedy="restore the shard, or start a new run on the data as it is now",
        )
    cut = data.find(b"\n") + 1 if start > 0 else 0
    if start > 0 and (cut == 0 or begin + cut >= stop):
        return start, b""
    end = data.find(b"\n", stop - 1 - begin) + 1
    while not end and begin + len(data) < size:
        more = read_range(dataset.fs, path, begin + len(data), min(begin + 2 * len(data), size))
        if not more:
            break
        end = more.find(b"\n") + 1
        end = len(data) + end if end else 0
        data += more
    return begin + cut, data[cut : end or len(data)]


def _lines_from(content: bytes, start: int, stop: int) -> tuple[int, bytes]:
    first = content.find(b"\n", start - 1) + 1 if start > 0 else 0
    if first >= stop or (start > 0 and first == 0):
        return start, b""
    end = content.find(b"\n", stop - 1)
    return first, content[first : len(content) if end < 0 else end + 1]


def _decompress(dataset: Dataset, shard: int) -> bytes:
    raw = read_range(dataset.fs, dataset.path(shard), 0, int(dataset.sizes[shard]))
    try:
        if dataset.shards[shard].lower().endswith(".gz"):
            return gzip.decompress(raw)
        return _unzstd(raw)
    except (EOFError, OSError, zlib.error, ValueError) as error:
        raise DataError(
            f"{dataset.path(shard)} cannot be decompressed: {error}",
            follows="the documents behind the damage would be lost without a word",
            remedy="restore the shard from its source",
        ) from error


def _unzstd(raw: bytes) -> bytes:
    """All frames. The library's own readers end quietly where the input does."""
    import zstandard

    parts = []
    while raw:
        frame = zstandard.ZstdDecompressor().decompressobj()
        try:
            parts.append(frame.decompress(raw))
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from error
        if not frame.eof:
            raise EOFError("the file ends in the middle of a frame")
        raw = frame.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _parse(dataset: Dataset, shard: int, offset: int, data: bytes) -> Documents:
    if offset == 0 and data.startswith(_BOM):
        data, offset = data[len(_BOM) :], len(_BOM)
    rows: list[int] = []
    records: list[dict[str, Any]] = []
    bad: list[DataError] = []
    loads, view, end, size = orjson.loads, memoryview(data), -1, len(data)
    while end < size:
        begin = end + 1
        end = data.find(b"\n", begin)
        end = size if end < 0 else end
        if begin == end:
            continue
        try:
            record = loads(view[begin:end])
        except orjson.JSONDecodeError as error:
            if data[begin:end].strip():
                bad.append(_bad_line(dataset, shard, offset + begin, f"is not one JSON object: {error}"))
            continue
        if type(record) is dict:
            records.append(record)
            rows.append(offset + begin)
        else:
            why = f"holds a JSON {type(record).__name__} where an object is needed"
            bad.append(_bad_line(dataset, shard, offset + begin, why))
    return Documents(rows, records, {}, tuple(bad))


def _bad_line(dataset: Dataset, shard: int, offset: int, why: str) -> DataError:
    error = DataError(
        f"line at byte {offset} of {dataset.path(shard)}{_line_number(dataset, shard, offset)} {why}",
        follows="the document would be left out without a word",
        remedy="mend the line, or remove it before a new run begins",
    )
    error.document = (shard, offset)
    return error


def _line_number(dataset: Dataset, shard: int, offset: int) -> str:
    if offset > 1 << 28 or dataset.shards[shard].lower().endswith((".gz", ".zst")):
        return ""  # counting would mean reading too much for the sake of a message
    before = read_range(dataset.fs, dataset.path(shard), 0, offset)
    return f" (line {before.count(bytes([10])) + 1})"
