"""The same documents in every format, and how files of them get damaged: what fuzzing and property tests are made from."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import random
import struct
import tarfile
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import zstandard

Document = dict[str, Any]


def lines(documents: Sequence[Document]) -> bytes:
    return b"".join(json.dumps(document, ensure_ascii=False).encode() + b"\n" for document in documents)


def zstd(data: bytes) -> bytes:
    """With a checksum, as the command line tool writes it; in two frames."""
    half, packer = len(data) // 2, zstandard.ZstdCompressor(write_checksum=True)
    return packer.compress(data[:half]) + packer.compress(data[half:])


def parquet(documents: Sequence[Document]) -> bytes:
    sink = io.BytesIO()
    names = dict.fromkeys(name for document in documents for name in document)
    table = pa.table({name: [document.get(name) for document in documents] for name in names})
    pq.write_table(table, sink, row_group_size=max(1, len(documents) // 3), write_page_checksum=True)
    return sink.getvalue()


def arrow(documents: Sequence[Document], *, as_file: bool = True) -> bytes:
    """Three batches, as an IPC file or as a stream."""
    sink = io.BytesIO()
    names = dict.fromkeys(name for document in documents for name in document)
    table = pa.table({name: [document.get(name) for document in documents] for name in names})
    with (pa.ipc.new_file if as_file else pa.ipc.new_stream)(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=max(1, len(documents) // 3))
    return sink.getvalue()


def feather(documents: Sequence[Document]) -> bytes:
    """Compressed, as is the default of the library."""
    sink = io.BytesIO()
    names = dict.fromkeys(name for document in documents for name in document)
    pa.feather.write_feather(pa.table({name: [document.get(name) for document in documents] for name in names}), sink)
    return sink.getvalue()


def mds(documents: Sequence[Document]) -> bytes:
    """Text as ``str``, lists of numbers as ``json``, as Mosaic Streaming lays them out: columns in the order of their names."""
    names = sorted(documents[0])
    texts = {name: isinstance(documents[0][name], str) for name in names}
    head = {"column_names": names, "column_encodings": ["str" if texts[name] else "json" for name in names]}
    columns = json.dumps({**head, "column_sizes": [None] * len(names), "format": "mds"}).encode()
    samples = []
    for document in documents:
        values = [document[name].encode() if texts[name] else json.dumps(document[name]).encode() for name in names]
        samples.append(struct.pack(f"<{len(values)}I", *map(len, values)) + b"".join(values))
    begin = 4 * (len(documents) + 2) + len(columns)
    offsets = itertools.accumulate(map(len, samples), initial=begin)
    return struct.pack(f"<{len(documents) + 2}I", len(documents), *offsets) + columns + b"".join(samples)


def tar(documents: Sequence[Document]) -> bytes:
    """Text in ``.txt``, everything else in ``.json``."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for number, document in enumerate(documents):
            rest = {name: value for name, value in document.items() if name != "text"}
            for kind, data in (("txt", document["text"].encode()), ("json", json.dumps(rest).encode())):
                info = tarfile.TarInfo(f"{number:04}.{kind}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return sink.getvalue()


WRITERS: dict[str, Callable[[Sequence[Document]], bytes]] = {
    "jsonl": lines,
    "jsonl.gz": lambda documents: gzip.compress(lines(documents), mtime=0),
    "jsonl.zst": lambda documents: zstd(lines(documents)),
    "parquet": parquet,
    "arrow": lambda documents: arrow(documents, as_file=False),
    "ipc": arrow,
    "feather": feather,
    "mds": mds,
    "mds.zstd": lambda documents: zstd(mds(documents)),
    "tar": tar,
    "txt": lambda documents: documents[0]["text"].encode(),
}
CHECKED = {"jsonl.gz", "jsonl.zst", "mds.zstd"}
"""Formats in which a checksum covers every byte of the documents."""


def flipped(data: bytes, chance: random.Random) -> bytes:
    harmed = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 3, 20])):
        harmed[chance.randrange(len(harmed))] ^= 1 << chance.randrange(8)
    return bytes(harmed)


def cut(data: bytes, chance: random.Random) -> bytes:
    """Without its end, its beginning, or a stretch in the middle."""
    first, last = sorted((chance.randrange(len(data) + 1), chance.randrange(len(data) + 1)))
    return chance.choice([data[:last], data[first:], data[:first] + data[last:]]) or data[:1]


def joined(data: bytes, chance: random.Random) -> bytes:
    """With itself, or with bytes that are nothing behind or before it."""
    noise = chance.randbytes(chance.choice([1, 20, 3000]))
    return chance.choice([data + data, data + noise, noise + data, data + bytes(2000)])


def overwritten(data: bytes, chance: random.Random) -> bytes:
    """A stretch of zeros or noise in it, as a lost block of a disk leaves it."""
    first, length = chance.randrange(len(data)), chance.choice([4, 64, 512, 4096])
    lost = bytes(length) if chance.random() < 0.5 else chance.randbytes(length)
    return data[:first] + lost[: len(data) - first] + data[first + length :]


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "flipped": flipped,
    "cut": cut,
    "joined": joined,
    "overwritten": overwritten,
}
