"""Formats: the same documents whatever the cut, the compression and the line ends; damage is an error with an address."""

from __future__ import annotations

import bz2
import dataclasses
import gc
import gzip
import http.server
import io
import itertools
import os
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import orjson
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from fsspec.implementations.dirfs import DirFileSystem

from zephon.errors import ConfigError, DataError, NotFound
from zephon.io import Dataset, InMemoryShard, read
from zephon.io.listing import list_files
from zephon.io.storage import _own
from zephon.ops.fields import extract_token_columns
from zephon.types import Chunk, Ragged, ShardRange

TEXTS = [f"document {i} " + "x" * (i * 37 % 90) for i in range(200)]
LINES = b"".join(orjson.dumps({"text": text, "n": i}) + b"\n" for i, text in enumerate(TEXTS))


def texts_of(dataset: Dataset, cuts: int = 1) -> list[str]:
    """All documents of all shards, each shard read in so many ranges."""
    found: list[str] = []
    for shard, size in enumerate(dataset.sizes.tolist()):
        edges = [size * i // cuts for i in range(cuts + 1)]
        for start, stop in itertools.pairwise(edges):
            if start < stop:
                columns = read(dataset, Chunk(0, 0, 0, (ShardRange(shard, start, stop),)))
                found += [document["text"] for document in columns.dicts()]
    return found


def write(path: Path, data: bytes) -> Dataset:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return Dataset.from_path("d", str(path))


def parquet(path: Path) -> bytes:
    pq.write_table(pa.table({"text": TEXTS, "n": list(range(len(TEXTS)))}), path, row_group_size=33)
    return path.read_bytes()


WRITERS: dict[str, Callable[[Path], bytes]] = {
    "jsonl": lambda _: LINES,
    "jsonl.gz": lambda _: gzip.compress(LINES),
    "jsonl.zst": lambda _: zstandard.compress(LINES[:3000]) + zstandard.compress(LINES[3000:]),
    "parquet": parquet,
}


@pytest.mark.parametrize("suffix", list(WRITERS))
@pytest.mark.parametrize("cuts", [1, 2, 7, 63])
def test_any_cut_of_a_shard_gives_every_document_once_and_in_order(tmp_path: Path, suffix: str, cuts: int) -> None:
    dataset = write(tmp_path / f"a.{suffix}", WRITERS[suffix](tmp_path / "made"))
    assert texts_of(dataset, cuts) == TEXTS


@pytest.mark.parametrize(
    "data",
    [b"\xef\xbb\xbf" + LINES, LINES.replace(b"\n", b"\r\n"), LINES.replace(b"\n", b"\n\n \n"), LINES.rstrip(b"\n")],
    ids=["byte order mark", "carriage returns", "blank lines", "no last line feed"],
)
@pytest.mark.parametrize("cuts", [1, 5])
def test_marks_blank_lines_and_line_ends_change_no_document(tmp_path: Path, data: bytes, cuts: int) -> None:
    assert texts_of(write(tmp_path / "a.jsonl", data), cuts) == TEXTS


def test_two_objects_on_a_line_are_an_error_that_names_line_and_byte(tmp_path: Path) -> None:
    dataset = write(tmp_path / "a.jsonl", b'{"text": "a"}\n{"text": "b"}{"text": "c"}\n')
    with pytest.raises(DataError, match=r"line at byte 14 of .*a\.jsonl \(line 2\)"):
        texts_of(dataset)


@pytest.mark.parametrize("suffix", ["jsonl.gz", "jsonl.zst", "parquet"])
def test_a_truncated_shard_is_an_error_and_never_a_quiet_end(tmp_path: Path, suffix: str) -> None:
    whole = WRITERS[suffix](tmp_path / "made")
    with pytest.raises(DataError, match="cannot be"):
        texts_of(write(tmp_path / f"a.{suffix}", whole[:-10]))


def test_a_file_that_shrank_since_it_was_listed_is_an_error(tmp_path: Path) -> None:
    dataset = write(tmp_path / "a.jsonl", LINES)
    (tmp_path / "a.jsonl").write_bytes(LINES[: len(LINES) // 2])
    with pytest.raises(DataError, match="the listing said"):
        texts_of(dataset)


MORE_WRITERS: dict[str, Callable[[Path], bytes]] = {
    **WRITERS,
    "txt": lambda _: b"one document",
    "tar": lambda made: tar_of(made, b"one document"),
    "mds": lambda _: (Path(__file__).parent / "mds" / "shard.00000.mds").read_bytes(),
}


def tar_of(path: Path, text: bytes) -> bytes:
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo("0.txt")
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text))
    return path.read_bytes()


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("suffix", list(MORE_WRITERS))
def test_a_shard_that_grew_since_it_was_listed_is_an_error(tmp_path: Path, suffix: str, far: bool) -> None:
    if far and suffix in ("jsonl", "mds"):
        pytest.skip("read in pieces from afar: what is asked for is there")
    whole = MORE_WRITERS[suffix](tmp_path / "made")
    dataset = write(tmp_path / f"a.{suffix}", whole)
    if far:
        dataset = dataclasses.replace(dataset, fs=DirFileSystem(str(tmp_path)), root="")
    (tmp_path / f"a.{suffix}").write_bytes(whole + whole)
    with pytest.raises(DataError, match=f"but the listing said {len(whole)} bytes"):
        texts_of(dataset)


@pytest.mark.parametrize("suffix", list(MORE_WRITERS))
def test_a_shard_that_became_a_pipe_is_an_error_in_every_format_and_not_waited_for(tmp_path: Path, suffix: str) -> None:
    dataset = write(tmp_path / f"a.{suffix}", MORE_WRITERS[suffix](tmp_path / "made"))
    (tmp_path / f"a.{suffix}").unlink()
    os.mkfifo(tmp_path / f"a.{suffix}")
    with pytest.raises(DataError, match="but the listing said"):
        texts_of(dataset)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (gzip.compress(LINES), "gzip"),
        (zstandard.compress(LINES), "Zstandard"),
        (bz2.compress(LINES), "bzip2"),
        (LINES.decode().encode("utf-16"), "UTF-16"),
        (LINES.decode().encode("utf-16-le"), "UTF-16"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS"),
    ],
    ids=["gzip", "zstandard", "bzip2", "utf-16", "utf-16 without a mark", "git lfs"],
)
def test_what_is_no_text_by_its_first_bytes_is_no_shard_of_a_few_bad_lines(tmp_path: Path, data: bytes, words: str) -> None:
    dataset = write(tmp_path / "a.jsonl", data)
    for start, stop in ((0, len(data)), (0, len(data) // 2)):
        with pytest.raises(DataError, match=f"is no JSON Lines.*{words}"):
            read(dataset, Chunk(0, 0, 0, (ShardRange(0, start, stop),)), bad=[])


def test_a_pointer_of_git_lfs_is_a_bad_document_and_never_trained(tmp_path: Path) -> None:
    dataset = write(tmp_path / "a.txt", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(DataError, match="pointer of Git LFS"):
        texts_of(dataset)


@pytest.mark.parametrize("suffix", list(WRITERS))
def test_a_shard_that_went_since_it_was_listed_is_an_error_with_a_remedy(tmp_path: Path, suffix: str) -> None:
    dataset = write(tmp_path / f"a.{suffix}", WRITERS[suffix](tmp_path / "made"))
    (tmp_path / f"a.{suffix}").unlink()
    kind = DataError if suffix == "parquet" else NotFound  # pyarrow does not tell a file that is gone from a damaged one
    for _ in range(2):
        with pytest.raises(kind, match="fix: restore"):
            texts_of(dataset)
        (tmp_path / f"a.{suffix}").mkdir(exist_ok=True)


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_data_written_anew_in_the_same_place_is_read_anew(tmp_path: Path, suffix: str) -> None:
    for text in ("one", "two"):
        data = b'{"text": "%s"}\n' % text.encode()
        (tmp_path / f"a.{suffix}").unlink(missing_ok=True)  # also another file in the eyes of the system
        assert texts_of(write(tmp_path / f"a.{suffix}", data if suffix == "jsonl" else gzip.compress(data, mtime=0))) == [text]


def test_a_descriptor_that_went_stale_is_opened_anew(tmp_path: Path) -> None:
    dataset = write(tmp_path / "a.jsonl", LINES)
    assert texts_of(dataset) == TEXTS
    key = dataset.shard(0).key
    folder = os.open(tmp_path, os.O_RDONLY)
    os.dup2(folder, _own.files.get(key, "it is open", len(LINES)))  # reading a folder is an error, as reading a stale file is
    os.close(folder)
    assert texts_of(dataset, cuts=3) == TEXTS


def test_a_thread_keeps_few_files_open_and_none_when_it_has_ended(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number:02}.jsonl").write_bytes(LINES)
    dataset, me, most = Dataset.from_path("d", str(tmp_path)), psutil.Process(), []
    gc.collect()  # what other tests have left is closed now, not in between
    before = me.num_fds()

    def all_shards() -> None:
        texts_of(dataset)
        most.append(me.num_fds())

    thread = threading.Thread(target=all_shards)
    thread.start()
    thread.join()
    assert before < most[0] <= before + 9
    assert me.num_fds() == before


def test_token_lists_in_parquet_become_ragged_columns_without_python_lists(tmp_path: Path) -> None:
    rows = [list(range(i % 7)) for i in range(50)]
    for kind in (pa.uint16(), pa.int32(), pa.int64()):
        pq.write_table(pa.table({"input_ids": pa.array(rows, pa.list_(kind))}), tmp_path / "a.parquet", row_group_size=20)
        dataset = Dataset.from_path("d", str(tmp_path / "a.parquet"))
        size = int(dataset.sizes[0])
        columns = read(dataset, Chunk(0, 0, 0, (ShardRange(0, size // 3, size),)))
        stored, column = columns.fields["input_ids"], extract_token_columns(columns).fields["input_ids"]
        assert isinstance(stored, Ragged)
        assert stored.values.dtype == kind.to_pandas_dtype()
        assert isinstance(column, Ragged)
        assert column.values.dtype == np.uint32
        assert [row.tolist() for row in (column[i] for i in range(len(column)))] == rows[50 // 3 :]


def test_data_that_is_not_there_or_unclear_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="fix:"):
        Dataset.from_path("d", str(tmp_path / "missing"))
    (tmp_path / "b").mkdir()
    with pytest.raises(NotFound, match="no data file"):
        Dataset.from_path("d", str(tmp_path / "b"))
    write(tmp_path / "b" / "a.jsonl", LINES)
    write(tmp_path / "b" / "a.parquet", parquet(tmp_path / "made"))
    with pytest.raises(ConfigError, match=r"several formats: jsonl \(a.jsonl\), parquet \(a.parquet\)"):
        Dataset.from_path("d", str(tmp_path / "b"))
    assert len(Dataset.from_path("d", str(tmp_path / "b" / "*.jsonl")).shards) == 1
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "empty.jsonl").write_bytes(b"")
    with pytest.raises(ConfigError, match="no jsonl shard with any content"):
        Dataset.from_path("d", str(tmp_path / "c"))
    with pytest.raises(ConfigError, match="unknownscheme"):
        Dataset.from_path("d", "unknownscheme://a/b")
    with pytest.raises(ConfigError, match="did you mean 'jsonl'"):
        Dataset.from_path("d", str(tmp_path / "b" / "a.jsonl"), fmt="json")
    with pytest.raises(ConfigError, match="no row"):
        Dataset.from_dict("d", {"s": InMemoryShard([])})
    with pytest.raises(ValueError, match="stdlib://dogs"):
        Dataset.from_path("d", "stdlib://dogs")


@pytest.mark.parametrize("suffix", ["parquet", "jsonl.gz", "jsonl.zst", "tar", "mds", "mds.zstd"])
def test_a_shard_without_a_byte_beside_good_ones_is_refused_by_name(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / f"a.{suffix}", b"looked at only when it is read")
    (tmp_path / f"b.{suffix}").touch()
    with pytest.raises(ConfigError, match=f"shard 'b.{suffix}' has no bytes"):
        Dataset.from_path("d", str(tmp_path))


def test_a_frame_with_a_long_window_is_read(tmp_path: Path) -> None:
    settings = zstandard.ZstdCompressionParameters.from_level(3, window_log=30, enable_ldm=True)
    frame = zstandard.ZstdCompressor(compression_params=settings).compressobj()  # the size is not told, so the window stays
    dataset = write(tmp_path / "a.jsonl.zst", frame.compress(LINES) + frame.flush())
    assert zstandard.get_frame_parameters((tmp_path / "a.jsonl.zst").read_bytes()).window_size == 1 << 30
    assert texts_of(dataset, 2) == TEXTS


def test_the_order_of_shards_does_not_depend_on_the_order_of_their_making(tmp_path: Path) -> None:
    for name in "cab":
        write(tmp_path / f"{name}.jsonl", LINES)
    assert Dataset.from_path("d", str(tmp_path)).shards == ("a.jsonl", "b.jsonl", "c.jsonl")


def test_a_listing_goes_into_folders_follows_links_and_leaves_marks_out(tmp_path: Path) -> None:
    for name in ("b/z", "b/a", "a", "c", "b/_kept"):
        (tmp_path / "data" / name).parent.mkdir(exist_ok=True, parents=True)
        write(tmp_path / "data" / f"{name}.jsonl", LINES)
    for mark in ("_SUCCESS", ".a.jsonl.crc", "_logs/a.log", ".git/a.py", "b/_metadata"):
        (tmp_path / "data" / mark).parent.mkdir(exist_ok=True)
        (tmp_path / "data" / mark).write_text("no data")
    (tmp_path / "far").mkdir()
    write(tmp_path / "far" / "f.jsonl", LINES)
    write(tmp_path / "g.jsonl", LINES)
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "far")
    (tmp_path / "data" / "d.jsonl").symlink_to(tmp_path / "g.jsonl")
    (tmp_path / "data" / "nowhere.jsonl").symlink_to(tmp_path / "missing.jsonl")
    (tmp_path / "data" / "empty.jsonl").touch()
    (tmp_path / "data" / "README").write_text("not data by its suffix")
    found = Dataset.from_path("d", str(tmp_path / "data"))
    names = ["a.jsonl", "b/_kept.jsonl", "b/a.jsonl", "b/z.jsonl", "c.jsonl", "d.jsonl", "linked/f.jsonl"]
    assert list(found.shards) == names
    assert found.sizes.tolist() == [len(LINES)] * len(names)


def test_a_listing_asks_for_many_sizes_at_a_time_where_an_answer_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(600):
        (tmp_path / f"{number:03}.jsonl").write_bytes(b"x" * (number + 1))
    quick = list_files(str(tmp_path))
    monkeypatch.setattr("zephon.io.listing._SLOW_S", 0.0)  # every file system counts as slow
    assert list_files(str(tmp_path)) == quick
    assert quick.sizes == list(range(1, 601))


@pytest.mark.parametrize("suffix", list(WRITERS))
def test_a_file_system_in_memory_gives_the_same_documents(tmp_path: Path, suffix: str) -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe_file(f"/zephon-test/a.{suffix}", WRITERS[suffix](tmp_path / "made"))
    try:
        assert texts_of(Dataset.from_path("d", f"memory://zephon-test/a.{suffix}"), 5) == TEXTS
    finally:
        fs.rm("/zephon-test", recursive=True)


class _Ranges(http.server.SimpleHTTPRequestHandler):
    """Files with byte ranges, as object stores serve them."""

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        wanted = self.headers.get("Range")
        if wanted is None:
            self.send_response(200)
        else:
            first, last = wanted.removeprefix("bytes=").split("-")
            size = len(data)
            data = data[int(first) : int(last or size) + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{int(first) + len(data) - 1}/{size}")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        self.wfile.write(data)

    def end_headers(self) -> None:
        self.send_header("Accept-Ranges", "bytes")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    def handler(*args: Any) -> _Ranges:
        return _Ranges(*args, directory=str(tmp_path))

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        thread = threading.Thread(target=serving.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()
        thread.join(5)


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "parquet"])
def test_a_web_server_with_byte_ranges_gives_the_same_documents(tmp_path: Path, server: str, suffix: str) -> None:
    (tmp_path / f"a.{suffix}").write_bytes(WRITERS[suffix](tmp_path / "made"))
    assert texts_of(Dataset.from_path("d", f"{server}/a.{suffix}"), 5) == TEXTS


def test_k11_a_shard_that_is_not_there_is_an_error_at_once(tmp_path: Path, server: str) -> None:
    begun = time.monotonic()
    with pytest.raises(NotFound, match="no such file"):
        Dataset.from_path("d", f"{server}/missing.jsonl")
    (tmp_path / "a.jsonl").write_bytes(LINES)
    dataset = Dataset.from_path("d", f"{server}/a.jsonl")
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(FileNotFoundError) as caught:
        texts_of(dataset)
    assert "shard 'a.jsonl'" in "".join(caught.value.__notes__)
    assert time.monotonic() - begun < 20


def test_a_huge_row_group_is_decoded_once_and_not_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from zephon.io.formats import row_groups

    monkeypatch.setattr(row_groups, "HUGE", 1000)
    decoded: list[int] = []
    spill = row_groups._spill
    monkeypatch.setattr(row_groups, "_spill", lambda *args: (decoded.append(args[2]), spill(*args))[1])
    pq.write_table(pa.table({"text": TEXTS, "n": [[i, 2 * i] for i in range(len(TEXTS))]}), tmp_path / "a.parquet")
    dataset = Dataset.from_path("d", str(tmp_path / "a.parquet"))
    assert texts_of(dataset, 20) == TEXTS
    assert decoded == [0]


def test_row_groups_that_memory_has_no_room_for_are_decoded_once_however_often_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zephon.io.decoded import Held
    from zephon.io.formats import row_groups

    monkeypatch.setattr(row_groups, "SMALL", 1)
    monkeypatch.setattr(row_groups, "_tables", Held(3000))
    monkeypatch.setattr(row_groups, "_lies_in_memory", lambda folder: False)
    decoded: list[tuple[str, int]] = []
    for name in ("_read", "_spill"):
        read = getattr(row_groups, name)
        monkeypatch.setattr(
            row_groups, name, lambda *args, read=read, name=name: (decoded.append((name, args[2])), read(*args))[1]
        )
    texts = [f"{i} " + "x" * 40 for i in range(200)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=20, use_dictionary=False)
    dataset = Dataset.from_path("d", str(tmp_path / "a.parquet"))
    for cuts in (40, 7):
        assert texts_of(dataset, cuts) == texts
    assert sorted(number for _, number in decoded) == list(range(10))
    assert {name for name, _ in decoded} == {"_read", "_spill"}


MEASURED = """
import sys
import numpy as np
import pyarrow as pa
from zephon.io import Dataset, read
from zephon.types import Chunk, ShardRange

def anonymous():  # bytes of this process that lie in no file
    return 1024 * next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon"))

dataset = Dataset.from_path("d", sys.argv[1])
size, parts = int(dataset.sizes[0]), 100
begun, most, count = anonymous(), 0, 0
for i in np.random.default_rng(0).permutation(parts):
    count += len(read(dataset, Chunk(0, 0, 0, (ShardRange(0, size * i // parts, size * (i + 1) // parts),))))
    most = max(most, anonymous() - begun)
print(count, pa.default_memory_pool().max_memory() >> 20, most >> 20)
"""


def test_the_memory_for_one_huge_row_group_is_bounded(tmp_path: Path) -> None:
    """96 MiB of text in one row group, read in a hundred parts in any order; measured in a process of its own."""
    rows = ["abcdefgh" * 512] * 24_576
    pq.write_table(pa.table({"text": rows}), tmp_path / "a.parquet", row_group_size=len(rows), use_dictionary=False)
    command = [sys.executable, "-c", MEASURED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    count, of_arrow, anonymous = map(int, done.stdout.split())
    assert count == len(rows)
    assert of_arrow < 64
    assert anonymous < 100


def test_no_room_for_a_huge_row_group_names_the_folder_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from zephon.io.formats import row_groups

    monkeypatch.setattr(row_groups, "HUGE", 1000)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"row group 0 of 0 MiB is decoded to .*nowhere, which fails") as caught:
        texts_of(write(tmp_path / "a.parquet", parquet(tmp_path / "made")))
    assert "TMPDIR" in caught.value.remedy


@pytest.mark.parametrize("suffix", ["parquet", "mds", "tar"])
def test_two_files_that_were_joined_are_no_file_of_half_the_documents(tmp_path: Path, suffix: str) -> None:
    whole = MORE_WRITERS[suffix](tmp_path / "made")
    with pytest.raises(DataError, match=r"joined at byte|samples end at byte|there is data at byte"):
        texts_of(write(tmp_path / f"a.{suffix}", whole + whole), cuts=3)


def test_a_tar_of_zeros_is_no_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no document"):
        texts_of(write(tmp_path / "a.tar", bytes(10240)))
