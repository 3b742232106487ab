"""The disk cache: the same bytes with and without it, whoever else reads, writes, removes or is killed."""

from __future__ import annotations

import dataclasses
import errno
import gzip
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.dirfs import DirFileSystem

from tests.io.web import Web, flipped, serving
from zephon import Pipeline, StaticMixtureWorkSource
from zephon.errors import ConfigError, DataError
from zephon.io import Dataset, cache, read
from zephon.io.cache import CachedFiles, CacheOptions, cached, size_of
from zephon.types import Chunk, ShardRange


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "PIECE", 1000)


def far(folder: Path, *, enabled: bool = True, root: Path | None = None, limit: Any = None) -> Dataset:
    """A folder as if it were an object store, through a cache beside it."""
    dataset = Dataset.from_path("d", str(folder))
    apart = dataclasses.replace(dataset, fs=DirFileSystem(str(folder)), root="")
    return cached(apart, CacheOptions(enabled=enabled, root=str(root or folder.parent / "cache"), limit_bytes=limit))


def documents(dataset: Dataset) -> list[str]:
    chunks = [Chunk(0, 0, 0, (ShardRange(i, 0, int(size)),)) for i, size in enumerate(dataset.sizes)]
    return [document["text"] for chunk in chunks for document in read(dataset, chunk).dicts()]


def lines(folder: Path, files: int = 4) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(files):
        text = "".join(f'{{"text": "{i} {j} {"z" * (j % 50)}"}}\n' for j in range(120))
        (folder / f"{i}.jsonl").write_text(text)
    return folder


def pieces(root: Path) -> list[Path]:
    return sorted(root.glob("??/*"))


def files(dataset: Dataset) -> CachedFiles:
    assert isinstance(dataset.fs, CachedFiles)
    return dataset.fs


def test_what_is_read_through_the_cache_is_what_is_there_and_the_second_time_comes_from_the_disk(tmp_path: Path) -> None:
    folder = lines(tmp_path / "data")
    expected = documents(Dataset.from_path("d", str(folder)))
    assert documents(far(folder)) == expected
    again = far(folder)
    assert documents(again) == expected
    assert (files(again).misses, files(again).hits > 0) == (0, True)
    assert far(folder).identity == Dataset.from_path("d", str(folder)).identity


def test_parquet_reads_its_footer_and_groups_through_the_cache(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    texts = [f"document {i}" for i in range(500)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "data" / "a.parquet", row_group_size=50)
    assert documents(far(tmp_path / "data")) == texts
    again = far(tmp_path / "data")
    assert documents(again) == texts
    assert files(again).misses == 0


@pytest.mark.parametrize(("start", "end"), [(None, None), (0, 10), (990, 1010), (2000, 10**9), (50, 50), (10**9, None)])
def test_any_range_is_the_files_own(tmp_path: Path, start: int | None, end: int | None) -> None:
    folder = lines(tmp_path / "data", 1)
    whole = (folder / "0.jsonl").read_bytes()
    assert files(far(folder)).cat_file("0.jsonl", start, end) == whole[start:end]


def test_j03_a_shard_that_was_written_anew_is_another_one(tmp_path: Path) -> None:
    folder = lines(tmp_path / "data", 1)
    before = documents(far(folder))
    text = (folder / "0.jsonl").read_text().replace("z", "y")
    (folder / "0.jsonl").write_text(text)
    os.utime(folder / "0.jsonl", ns=(1, 1))
    assert documents(far(folder)) == [text.replace("z", "y") for text in before] != before


def test_a_store_that_says_nothing_of_its_content_is_not_cached(tmp_path: Path) -> None:
    class Silent(DirFileSystem):  # type: ignore[misc]
        def info(self, path: str, **options: Any) -> dict[str, Any]:
            return {name: value for name, value in super().info(path, **options).items() if name in ("name", "size", "type")}

    folder = lines(tmp_path / "data", 1)
    silent = CachedFiles(Silent(str(folder)), CacheOptions(enabled=True, root=str(tmp_path / "cache")))
    assert silent.cat_file("0.jsonl", 5, 25) == (folder / "0.jsonl").read_bytes()[5:25]
    assert pieces(tmp_path / "cache") == []


def test_k01_data_on_this_machine_is_never_copied_and_nothing_is_removed_that_the_cache_did_not_make(tmp_path: Path) -> None:
    folder = lines(tmp_path / "data")
    local = Dataset.from_path("d", str(folder))
    assert cached(local, CacheOptions(enabled=True, root=str(tmp_path / "cache"), limit_bytes=2000)) is local
    assert far(folder, enabled=False).fs.__class__ is DirFileSystem
    mine = folder / "ab"
    mine.mkdir()
    (mine / "kept.jsonl").write_text("kept")
    documents(far(lines(tmp_path / "other"), root=folder, limit=2500))
    assert (mine / "kept.jsonl").read_text() == "kept"
    assert len(list(folder.glob("*.jsonl"))) == 4


def test_d11_and_k03_pieces_that_are_removed_while_others_read_are_fetched_again(tmp_path: Path) -> None:
    folder = lines(tmp_path / "data", 6)
    expected = documents(Dataset.from_path("d", str(folder)))
    readers = [far(folder, limit=2 * cache.PIECE) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda dataset: documents(dataset), readers * 3)) == [expected] * 12
    root = tmp_path / "cache"
    assert sum(place.stat().st_size for place in pieces(root)) <= 2 * (cache.PIECE + cache.CHECK) * len(readers)
    assert not list(root.glob("??/*.tmp"))


def test_the_piece_used_longest_ago_goes_first(tmp_path: Path) -> None:
    folder = lines(tmp_path / "data", 1)
    one = files(far(folder, limit=3 * cache.PIECE))
    for number in (0, 1):
        one.cat_file("0.jsonl", number * 1000, number * 1000 + 10)
    old, new = sorted(pieces(tmp_path / "cache"), key=lambda place: place.name)
    os.utime(old, (1, 1))
    one.cat_file("0.jsonl", 0, 10)  # used again: now the other one is older
    os.utime(new, (2, 2))
    one.cat_file("0.jsonl", 2000, 2010)
    assert old in pieces(tmp_path / "cache")
    assert new not in pieces(tmp_path / "cache")


def test_d19_a_limit_too_small_to_be_of_use_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="less than two pieces"):
        CacheOptions(limit_bytes=1999)


@pytest.mark.parametrize("place", ["file", "read-only"])
def test_k07_a_disk_that_takes_nothing_costs_speed_and_no_data(tmp_path: Path, place: str) -> None:
    folder = lines(tmp_path / "data")
    root = tmp_path / "cache"
    if place == "file":
        root.write_text("not a directory")
    else:
        root = Path("/proc/zephon")  # nobody can make a directory here, not even root
    assert documents(far(folder, root=root)) == documents(Dataset.from_path("d", str(folder)))


@pytest.mark.parametrize(
    "harm", [lambda data: data[:-1], lambda data: bytes(len(data)), lambda data: b"", lambda data: data[1:] + b"}"]
)
def test_a_piece_that_is_damaged_is_fetched_again(tmp_path: Path, harm: Callable[[bytes], bytes]) -> None:
    folder = lines(tmp_path / "data")
    expected = documents(far(folder))
    for place in pieces(tmp_path / "cache"):
        place.write_bytes(harm(place.read_bytes()))
    assert documents(far(folder)) == expected


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Web]:
    with serving(lines(tmp_path / "data", 1)) as running:
        yield running


def far_from(server: Web, root: Path, name: str = "0.jsonl") -> Dataset:
    return cached(Dataset.from_path("d", f"{server.url}/{name}"), CacheOptions(enabled=True, root=str(root)))


@pytest.mark.parametrize("name", ["0.jsonl", "0.jsonl.gz", "0.parquet"])
def test_a_piece_that_was_damaged_on_its_way_is_fetched_again_when_it_cannot_be_decoded(
    server: Web, tmp_path: Path, name: str
) -> None:
    place = server.folder / "0.jsonl"
    expected = documents(Dataset.from_path("d", str(place)))
    if name.endswith("gz"):
        (server.folder / name).write_bytes(gzip.compress(place.read_bytes()))
    if name.endswith("parquet"):
        pq.write_table(pa.table({"text": expected}), server.folder / name)
    server.faults = [flipped]
    assert documents(far_from(server, tmp_path / "cache", name)) == expected
    assert documents(far_from(server, tmp_path / "cache", name)) == expected, "what was damaged is gone from the cache too"


def test_a_shard_that_is_damaged_at_its_source_is_fetched_twice_and_no_more_and_the_error_has_both_hashes(
    server: Web, tmp_path: Path
) -> None:
    place = server.folder / "0.jsonl"
    (server.folder / "0.jsonl.gz").write_bytes(gzip.compress(place.read_bytes())[:-20] + bytes(20))
    dataset = far_from(server, tmp_path / "cache", "0.jsonl.gz")
    for _ in range(3):
        with pytest.raises(DataError, match="cannot be decompressed") as caught:
            documents(dataset)
        assert any(note.startswith("fetched twice: SHA-256 of what was cached is ") for note in caught.value.__notes__)
    assert server.asked() == 2


def test_a_bad_document_in_a_cached_shard_is_fetched_twice_and_no_more(server: Web, tmp_path: Path) -> None:
    place = server.folder / "0.jsonl"
    place.write_bytes(place.read_bytes() + b"no json\n")
    dataset = far_from(server, tmp_path / "cache")
    pieces = -(-place.stat().st_size // cache.PIECE)
    for _ in range(2):
        with pytest.raises(DataError, match="is not one JSON object"):
            documents(dataset)
    assert server.asked() == 2 * pieces


def test_of_many_readers_of_a_node_one_fetches_a_piece(server: Web, tmp_path: Path) -> None:
    expected = documents(Dataset.from_path("d", str(server.folder / "0.jsonl")))
    readers = [far_from(server, tmp_path / "cache") for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(documents, readers)) == [expected] * 6
    assert server.asked() == -(-(server.folder / "0.jsonl").stat().st_size // cache.PIECE)


def test_where_the_file_system_knows_no_locks_a_piece_may_be_fetched_twice_and_is_right(
    server: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    assert documents(far_from(server, tmp_path / "cache")) == documents(Dataset.from_path("d", str(server.folder / "0.jsonl")))


CHILD = """
import sys
from pathlib import Path
from tests.io.test_cache import documents, far
from zephon.io import cache
cache.PIECE = 1000
print(hash(tuple(documents(far(Path(sys.argv[1]), limit=9000)))))
"""


def test_k05_and_k09_processes_that_begin_on_one_empty_cache_read_the_same(tmp_path: Path) -> None:
    folder = lines(tmp_path / "data", 8)
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-c", CHILD, str(folder)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(4)]
    said = [child.communicate(timeout=60)[0] for child in children]
    assert [child.returncode for child in children] == [0] * 4
    assert len(set(said)) == 1
    assert not list((tmp_path / "cache").glob("??/*.tmp"))


def test_it_travels_to_another_process_and_asks_the_store_itself_for_the_rest(tmp_path: Path) -> None:
    folder = lines(tmp_path / "data")
    there = pickle.loads(pickle.dumps(far(folder)))
    assert documents(there) == documents(Dataset.from_path("d", str(folder)))
    assert there.fs.exists("0.jsonl")


def test_one_cache_serves_many_threads_and_counts_what_it_had(tmp_path: Path) -> None:
    folder = lines(tmp_path / "data", 1)
    whole = (folder / "0.jsonl").read_bytes()
    one = files(far(folder))
    wrong: list[int] = []

    def work(seed: int) -> None:
        starts = np.random.Generator(np.random.PCG64(seed)).integers(0, len(whole), 50).tolist()
        wrong.extend(start for start in starts if one.cat_file("0.jsonl", start, start + 700) != whole[start : start + 700])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert one.hits > one.misses > 0


def test_options_are_checked_with_the_nearest_name_and_sizes_read_as_people_write_them() -> None:
    assert CacheOptions.of({}) == CacheOptions()
    assert CacheOptions.of({"cache": {"enabled": True, "limit_bytes": "500gb"}}).limit == 500 * 10**9
    assert [size_of(text) for text in (7, "7", "2 GiB", "1.5mb", "3KB")] == [7, 7, 2 << 30, 1_500_000, 3000]
    with pytest.raises(ConfigError, match="did you mean 'cache'"):
        CacheOptions.of({"cach": {}})
    with pytest.raises(ConfigError, match="did you mean 'enabled'"):
        CacheOptions.of({"cache": {"enable": True}})
    with pytest.raises(ConfigError, match="'many' is not a size"):
        size_of("many")


def test_an_object_store_in_memory_is_cached_too(tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/cache-test/a.jsonl", b'{"text": "one"}\n{"text": "two"}\n')
    try:
        dataset = cached(
            Dataset.from_path("d", "memory://cache-test/a.jsonl"), CacheOptions(enabled=True, root=str(tmp_path / "cache"))
        )
        assert documents(dataset) == documents(dataset) == ["one", "two"]
        assert files(dataset).hits > 0
    finally:
        fs.rm("/cache-test", recursive=True)


def test_a_pipeline_reads_far_data_through_the_cache_it_is_told_of(tmp_path: Path) -> None:
    folder = lines(tmp_path / "data")
    apart = dataclasses.replace(Dataset.from_path("d", str(folder)), fs=DirFileSystem(str(folder)), root="")

    def tokens(**options: Any) -> list[Any]:
        chain = Pipeline(StaticMixtureWorkSource([apart], seed=1, chunk_bytes=2000)).options(**options)
        chain.tokenize(tokenizer_id="bytes", field="text").pack_flat(64, algorithm="wrap").batch(4)
        return [batch.payload["input_ids"].tolist() for batch in chain]

    told = {"cache": {"enabled": True, "root": str(tmp_path / "cache")}}
    assert tokens(io_options=told) == tokens()
    assert pieces(tmp_path / "cache")
    with pytest.raises(ConfigError, match="enable"):
        tokens(io_options={"cache": {"enable": True}})
