"""MDS: shards that Mosaic Streaming itself has written (tests/io/mds, by its version 0.13), and others made here like them."""

from __future__ import annotations

import itertools
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from tests.io.documents import as_bytes
from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.errors import DataError
from zephon.io import read
from zephon.types import Chunk, ShardRange

WRITTEN = Path(__file__).resolve().parent / "mds"


def expected(i: int) -> dict[str, Any]:
    """What was given to Mosaic Streaming's writer."""
    return {
        "text": f"dökument {i}" + "x" * i,
        "n": i - 3,
        "tokens": list(range(i + 1)),
        "raw": bytes([i]),
        "j": {"a": [i]},
        "f": i / 2,
        "id": i,
    }


def plain(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in document.items()}


def documents(dataset: Dataset, cuts: int = 1) -> list[dict[str, Any]]:
    found = []
    for shard, size in enumerate(dataset.sizes.tolist()):
        for start, stop in itertools.pairwise([size * i // cuts for i in range(cuts + 1)]):
            found += [plain(one) for one in read(dataset, Chunk(0, 0, 0, (ShardRange(shard, start, stop),))).dicts()]
    return found


def shard(columns: dict[str, tuple[str, int | None]], rows: list[list[bytes]]) -> bytes:
    """A shard with the given columns (encoding, size) and rows of encoded values."""
    said = {"column_names": list(columns), "column_encodings": [c[0] for c in columns.values()]}
    head = json.dumps({**said, "column_sizes": [c[1] for c in columns.values()], "format": "mds"}).encode()
    samples = []
    for row in rows:
        sizes = [len(value) for value, (_, size) in zip(row, columns.values(), strict=True) if size is None]
        samples.append(struct.pack(f"<{len(sizes)}I", *sizes) + b"".join(row))
    begin = 4 * (len(rows) + 2) + len(head)
    offsets = itertools.accumulate(map(len, samples), initial=begin)
    return struct.pack(f"<{len(rows) + 2}I", len(rows), *offsets) + head + b"".join(samples)


@pytest.mark.parametrize("cuts", [1, 2, 7, 40])
def test_shards_written_by_mosaic_streaming_give_every_document_once_and_in_order(cuts: int) -> None:
    dataset = Dataset.from_path("d", str(WRITTEN))
    assert (dataset.format.name, dataset.shards) == ("mds", ("shard.00000.mds", "shard.00001.mds"))
    assert documents(dataset, cuts) == [expected(i) for i in range(16)]


def test_compressed_shards_give_the_same(tmp_path: Path) -> None:
    for path in WRITTEN.glob("*.mds"):
        (tmp_path / f"{path.name}.zstd").write_bytes(zstandard.compress(path.read_bytes()))
    assert documents(Dataset.from_path("d", str(tmp_path)), 3) == [expected(i) for i in range(16)]


def test_all_frames_of_a_compressed_shard_are_read(tmp_path: Path) -> None:
    whole = (WRITTEN / "shard.00000.mds").read_bytes()
    expected_documents = documents(Dataset.from_path("d", str(WRITTEN / "shard.00000.mds")))
    (tmp_path / "a.mds.zstd").write_bytes(zstandard.compress(whole[:200]) + zstandard.compress(whole[200:]))
    assert documents(Dataset.from_path("d", str(tmp_path)), 3) == expected_documents


def test_stored_tokens_are_packed() -> None:
    source = StaticMixtureWorkSource([Dataset.from_path("d", str(WRITTEN))], shuffle_within_shard=False, shuffle_shards=False)
    pipeline = Pipeline(source).options(runner="inline").pack_flat(17, algorithm="wrap").batch(1)
    stream = np.concatenate([np.asarray(batch.fields["input_ids"])[0] for batch in pipeline])
    assert stream[: 16 * 17 // 2].tolist() == [token for i in range(16) for token in range(i + 1)]


@pytest.mark.parametrize(
    ("encoding", "size", "data", "value"),
    [
        ("ndarray:uint16", None, b"\x04\x02\x01\x00\x02\x01", [1, 258]),
        ("ndarray:uint16", None, b"\x05" + struct.pack("<H", 300) + bytes(600), [0] * 300),
        ("ndarray:uint16", None, b"\x06" + struct.pack("<I", 70000) + bytes(140000), [0] * 70000),
        ("ndarray:int32:4", 16, np.arange(4, dtype="<i4").tobytes(), [0, 1, 2, 3]),
        ("ndarray", None, b"\x08\x04\x03\x07\x08\x09", [7, 8, 9]),
        ("ndarray", None, b"\x41\x08\x02\x01" + struct.pack("<2q", -1, 5), [[-1], [5]]),
        ("str_int", None, b"12345678901234567890123", 12345678901234567890123),
        ("float32", 4, b"\x00\x00\xc0\x3f", 1.5),
        ("int32", 4, b"\xfb\xff\xff\xff", -5),
        ("uint16", 2, b"\x09\x00", 9),
    ],
)
def test_values_are_read_as_mosaic_streaming_writes_them(
    tmp_path: Path, encoding: str, size: int | None, data: bytes, value: Any
) -> None:
    (tmp_path / "a.mds").write_bytes(shard({"v": (encoding, size)}, [[data]]))
    assert documents(Dataset.from_path("d", str(tmp_path))) == [{"v": value}]


@pytest.mark.parametrize("kept", [0.3, 0.7, 0.999])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_shard_that_is_cut_short_is_an_error_and_never_a_quiet_end(tmp_path: Path, kept: float, compressed: bool) -> None:
    whole = (WRITTEN / "shard.00000.mds").read_bytes()
    data = zstandard.compress(whole) if compressed else whole
    (tmp_path / f"a.mds{'.zstd' if compressed else ''}").write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(DataError, match="cannot be read as MDS"):
        documents(Dataset.from_path("d", str(tmp_path)))


def test_a_sample_that_cannot_be_decoded_can_be_quarantined(tmp_path: Path) -> None:
    rows = [[text] for text in (b"one", b"tw\xff", b"three")]
    (tmp_path / "a.mds").write_bytes(shard({"text": ("str", None)}, rows))
    kept = as_bytes(tmp_path, "text", on_error="quarantine")
    assert [bytes(b.payload["input_ids"][0].tolist()) for b in kept] == [b"one", b"three"]
    with pytest.raises(DataError, match="sample 1 of") as caught:
        list(as_bytes(tmp_path, "text", on_error="raise"))
    assert "shard 'a.mds', row 1" in "".join(caught.value.__notes__)


@pytest.mark.parametrize(("encoding", "words"), [("pkl", "could run any code"), ("pil", "'pil' is not supported")])
def test_what_is_not_read_is_said(tmp_path: Path, encoding: str, words: str) -> None:
    (tmp_path / "a.mds").write_bytes(shard({"v": (encoding, None)}, [[b"x"]]))
    with pytest.raises(DataError, match=words):
        documents(Dataset.from_path("d", str(tmp_path)))


def test_beside_files_of_another_format_it_is_refused(tmp_path: Path) -> None:
    shutil.copy(WRITTEN / "shard.00000.mds", tmp_path)
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(ValueError, match="several formats"):
        Dataset.from_path("d", str(tmp_path))
