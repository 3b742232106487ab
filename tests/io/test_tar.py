"""WebDataset tars: documents of neighbouring members, whatever the cut; damage and members that lie apart are errors."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.dirfs import DirFileSystem

from tests.io.documents import as_bytes
from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.errors import DataError
from zephon.io import read
from zephon.types import Chunk, ShardRange

EXPECTED = [
    {"__key__": f"part/{i:04}", "txt": f"dökument {i}", "json": {"n": i}, "jpg": bytes([i] * (i * 37 % 900))} for i in range(60)
]


def members(document: dict[str, Any]) -> list[tuple[str, bytes]]:
    key = document["__key__"]
    return [
        (f"{key}.txt", document["txt"].encode()),
        (f"{key}.json", json.dumps(document["json"]).encode()),
        (f"{key}.JPG", document["jpg"]),
    ]


def write(path: Path, files: Sequence[tuple[str, bytes]], kind: int = tarfile.GNU_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=kind) as tar:
        folder = tarfile.TarInfo("part")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def documents(dataset: Dataset, cuts: int = 1) -> list[dict[str, Any]]:
    found = []
    for shard, size in enumerate(dataset.sizes.tolist()):
        for start, stop in itertools.pairwise([size * i // cuts for i in range(cuts + 1)]):
            found += list(read(dataset, Chunk(0, 0, 0, (ShardRange(shard, start, stop),))).dicts())
    return found


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("cuts", [1, 2, 7, 100])
def test_any_cut_gives_every_document_once_and_in_order(tmp_path: Path, cuts: int, far: bool) -> None:
    files = [member for document in EXPECTED for member in members(document)]
    write(tmp_path / "data" / "0.tar", files[:90])
    write(tmp_path / "data" / "1.tar", files[90:], tarfile.PAX_FORMAT)
    (tmp_path / "data" / "0.tar.idx").write_bytes(b"an index beside it")
    dataset = Dataset.from_path("d", str(tmp_path / "data"))
    assert (dataset.format.name, dataset.shards) == ("webdataset", ("0.tar", "1.tar"))
    if far:
        dataset = dataclasses.replace(dataset, fs=DirFileSystem(str(tmp_path / "data")), root="")
    assert documents(dataset, cuts) == EXPECTED


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_long_names_are_read_in_every_kind_of_tar(tmp_path: Path, kind: int) -> None:
    name = "/".join(["folder" * 5] * 4) + "/" + "k" * 60
    write(tmp_path / "a.tar", [(f"{name}.txt", b"one"), (f"{name}2.txt", b"two")], kind)
    dataset = Dataset.from_path("d", str(tmp_path / "a.tar"))
    assert [(one["__key__"], one["txt"]) for one in documents(dataset, 3)] == [(name, "one"), (f"{name}2", "two")]


def test_text_inside_json_is_tokenized_by_its_dotted_name(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", [(f"{i}.json", json.dumps({"text": "abc" * i}).encode()) for i in (1, 2)])
    source = StaticMixtureWorkSource(
        [Dataset.from_path("d", str(tmp_path / "a.tar"))], shuffle_within_shard=False, shuffle_shards=False
    )
    made = Pipeline(source).options(runner="inline")
    batches = made.tokenize(tokenizer_id="bytes", field="json.text", special_tokens="none").batch(1)
    assert [bytes(batch.payload["input_ids"][0].tolist()) for batch in batches] == [b"abc", b"abcabc"]


@pytest.mark.parametrize("cut", [100, 700, 1500, -11_000, -1])
def test_i13_a_tar_that_is_cut_short_is_an_error_and_never_a_quiet_end(tmp_path: Path, cut: int) -> None:
    data = write(tmp_path / "whole" / "a.tar", [(f"{i}.txt", b"x" * 700) for i in range(9)]).read_bytes()
    content = data.rstrip(b"\0")
    (tmp_path / "a.tar").write_bytes(content[:cut])
    with pytest.raises(DataError, match="cannot be read as a tar"):
        documents(Dataset.from_path("d", str(tmp_path / "a.tar")))


def joined(data: bytes) -> bytes:
    return data + data


def with_a_flipped_bit(data: bytes) -> bytes:
    begin = 512 + 3 * 1024 + 1  # the header of the fourth file, behind the folder and three files of two blocks each
    return data[:begin] + bytes([data[begin] ^ 1]) + data[begin + 1 :]


def with_zeros_in_the_middle(data: bytes) -> bytes:
    return data[: 512 * 7] + bytes(1024) + data[512 * 7 :]


@pytest.mark.parametrize("damage", [joined, with_a_flipped_bit, with_zeros_in_the_middle])
@pytest.mark.parametrize("far", [False, True])
def test_members_behind_a_damaged_header_or_an_early_end_are_an_error_that_names_the_byte(
    tmp_path: Path, damage: Callable[[bytes], bytes], far: bool
) -> None:
    whole = write(tmp_path / "whole" / "a.tar", [(f"{i}.txt", b"x" * 512) for i in range(9)]).read_bytes()
    (tmp_path / "a.tar").write_bytes(damage(whole))
    dataset = Dataset.from_path("d", str(tmp_path / "a.tar"))
    if far:
        dataset = dataclasses.replace(dataset, fs=DirFileSystem(str(tmp_path)), root="")
    with pytest.raises(DataError, match=r"members end at byte \d+, but there is data at byte \d+"):
        documents(dataset)


def test_a_member_that_is_a_link_is_an_error_and_not_a_missing_document(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("0.txt", "1.txt"):
            info = tarfile.TarInfo(name)
            if name == "1.txt":
                info.type, info.linkname = tarfile.LNKTYPE, "0.txt"
            tar.addfile(info)
    with pytest.raises(DataError, match=r"member '1\.txt' at byte 512 is a link"):
        documents(Dataset.from_path("d", str(tmp_path / "a.tar")))


@pytest.mark.parametrize(
    ("names", "words"),
    [(["0.a", "1.a", "0.b", "1.b"], "members of '0' lie apart"), (["0.a", "0.b", "0.A"], "'0' has two members 'A'")],
)
def test_i15_members_that_lie_apart_or_twice_are_an_error_that_names_the_document(
    tmp_path: Path, names: list[str], words: str
) -> None:
    write(tmp_path / "a.tar", [(name, b"x") for name in names])
    with pytest.raises(DataError, match=words):
        documents(Dataset.from_path("d", str(tmp_path / "a.tar")))


def test_a_document_that_cannot_be_decoded_can_be_quarantined(tmp_path: Path) -> None:
    files = [("0.txt", b"one"), ("1.txt", b"tw\xff"), ("2.json", b"{"), ("2.txt", b"x"), ("3.txt", b"four")]
    write(tmp_path / "a.tar", files)
    kept = as_bytes(tmp_path / "a.tar", "txt", on_error="quarantine")
    assert [bytes(b.payload["input_ids"][0].tolist()) for b in kept] == [b"one", b"four"]
    with pytest.raises(DataError, match="document '1' of") as caught:
        list(as_bytes(tmp_path / "a.tar", "txt", on_error="raise"))
    assert "shard 'a.tar', row 1" in "".join(caught.value.__notes__)
