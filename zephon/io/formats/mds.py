"""MDS, the shards of Mosaic Streaming: a document a sample. Each shard describes itself, so no index is needed.

    samples n | n + 1 offsets | columns as JSON | sample 0 | sample 1 | ...        whole numbers are little-endian uint32
    a sample: the sizes of its columns of varying size, then the columns, in the order of their names

Shards are planned by their size on disk, and a range of bytes is that part of the samples. A compressed shard (``.mds.zstd``)
is decoded whole, once for the chunks that lie in it.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np

from zephon.errors import DataError
from zephon.io.decoded import Held, unzstd
from zephon.io.formats.base import Documents, Shard, bad_document, check_size, read_whole
from zephon.io.storage import read_range
from zephon.types import Array, IntArray, Json

_HEAD = 1 << 16  # enough for the offsets and columns of most shards at the first try
_SHAPES = ("<u1", "<u2", "<u4", "<u8")
_KINDS = {0: "u", 1: "i", 2: "f"}
_NUMBERS = {
    f"{kind}{bits}" for kind, sizes in (("int", 8), ("uint", 8), ("float", 16)) for bits in (8, 16, 32, 64) if bits >= sizes
}


class _Head(NamedTuple):
    """offsets int64[samples + 1]; names, encodings and sizes (None: varying) of the columns."""

    offsets: IntArray
    names: list[str]
    encodings: list[str]
    sizes: list[int | None]


_whole: Held[bytes] = Held()
_heads: Held[_Head] = Held()


class Mds:
    name = "mds"

    def read(self, shard: Shard, start: int, stop: int) -> Documents:
        """The samples of a part of the shard; rows are sample numbers. A sample that cannot be decoded is a bad document.

        Raises:
            DataError: the shard is damaged or cut short, or holds pickled objects.
        """
        compressed = shard.path.lower().endswith((".zst", ".zstd"))
        if not compressed:
            check_size(shard)
        try:
            whole: bytes | None = None
            if compressed:
                whole = _whole.get(shard.key, lambda: unzstd(read_whole(shard)), len)
            head = _heads.get(shard.key, lambda: _read_head(shard, whole), lambda head: int(head.offsets.nbytes))
            count = len(head.offsets) - 1
            first, last = (edge * count // shard.size for edge in (start, stop))
            begin, end = int(head.offsets[first]), int(head.offsets[last])
            data = read_range(shard.fs, shard.path, begin, end) if whole is None else whole[begin:end]
            if len(data) < end - begin:
                raise ValueError(f"it ends {end - begin - len(data)} bytes early")
        except DataError:
            raise
        except (ValueError, TypeError, KeyError, IndexError, EOFError, OSError) as error:
            raise DataError(
                f"{shard.path} cannot be read as MDS: {error}",
                follows="its documents would be dropped silently",
                remedy="restore the shard from its source",
            ) from error
        rows, records, bad = [], [], []
        for row in range(first, last):
            sample = data[int(head.offsets[row]) - begin : int(head.offsets[row + 1]) - begin]
            try:
                records.append(_decode(head, sample))
                rows.append(row)
            except (ValueError, TypeError, IndexError) as error:  # numpy says TypeError of a kind that is none
                bad.append(_bad_sample(shard, row, error))
        return Documents(rows, records, {}, tuple(bad), (last - first) * shard.size // max(1, count))


def _read_head(shard: Shard, whole: bytes | None) -> _Head:
    def part(begin: int, end: int) -> bytes:
        return whole[begin:end] if whole is not None else read_range(shard.fs, shard.path, begin, end)

    head = part(0, _HEAD)
    count = int.from_bytes(head[:4], "little")
    edges = 4 * (count + 2)
    size = shard.size if whole is None else len(whole)
    if not 8 <= edges <= size:
        raise ValueError(f"{count} samples do not fit into its {size} bytes")
    if len(head) < edges:
        head = part(0, edges)
    offsets = np.frombuffer(head, "<u4", count + 1, 4).astype(np.int64)
    if np.any(np.diff(offsets) < 0):
        raise ValueError("its offsets do not ascend")
    if offsets[-1] != size:
        raise ValueError(f"its samples end at byte {offsets[-1]}, and it has {size}")
    begin = int(offsets[0])
    if len(head) < begin:
        head = part(0, begin)
    columns = json.loads(head[edges:begin])
    names, encodings, sizes = (columns[f"column_{kind}"] for kind in ("names", "encodings", "sizes"))
    if "pkl" in encodings:
        raise ValueError("it holds pickled objects, which could run any code")
    if not len(names) == len(encodings) == len(sizes) or not {*map(type, [*names, *encodings])} <= {str}:
        raise ValueError("its columns have no names, encodings and sizes")
    return _Head(offsets, names, encodings, sizes)


def _decode(head: _Head, sample: bytes) -> Json:
    varying = sum(size is None for size in head.sizes)
    lengths = np.frombuffer(sample, "<u4", varying).tolist()
    at, document, next_length = 4 * varying, {}, iter(lengths)
    for name, encoding, size in zip(head.names, head.encodings, head.sizes, strict=True):
        length = next(next_length) if size is None else size
        document[name] = _value(encoding, sample[at : at + length])
        at += length
    if at != len(sample):
        raise ValueError(f"{len(sample)} bytes where its columns take {at}")
    return document


def _value(encoding: str, data: bytes) -> object:
    kind, *more = encoding.split(":")
    if kind == "str":
        return data.decode()
    if kind in ("bytes", "jpeg", "png"):
        return bytes(data)
    if kind == "json":
        return json.loads(data)
    if kind == "int":
        return int.from_bytes(data, "little", signed=True)
    if kind in _NUMBERS:
        return np.frombuffer(data, np.dtype(kind).newbyteorder("<"))[0].item()
    if kind in ("str_int", "str_float"):
        return (int if kind == "str_int" else float)(data)
    if kind == "ndarray":
        return _array(data, *more)
    raise ValueError(f"encoding {encoding!r} is not supported")


def _array(data: bytes, dtype: str | None = None, shape: str | None = None) -> Array:
    """An array whose type and shape stand in the column's encoding, or before its values."""
    if dtype is None:
        code, data = data[0], data[1:]
        dtype = f"{_KINDS[code & 7]}{(code & ~7) // 8}" if code & 7 in _KINDS else ""
    kind = np.dtype(dtype).newbyteorder("<")
    if shape is not None:
        return np.frombuffer(data, kind).reshape([int(n) for n in shape.split(",")])
    axes, width = divmod(data[0], 4)
    sizes = np.frombuffer(data, _SHAPES[width], axes, 1)
    return np.frombuffer(data, kind, offset=1 + sizes.nbytes).reshape(sizes.tolist())


def _bad_sample(shard: Shard, row: int, cause: Exception) -> DataError:
    return bad_document(
        shard,
        row,
        f"a sample cannot be decoded: {type(cause).__name__}",
        f"sample {row} of {shard.path} cannot be decoded: {cause}",
        remedy="repair the shard, remove the sample before a new run begins",
    )
