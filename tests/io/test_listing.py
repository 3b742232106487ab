"""Folders in a bad state end in a listing of what is there or in an error that says what to do; none is walked for ever."""

from __future__ import annotations

import gzip
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import fsspec
import pytest
import zstandard

from tests.io.web import serving
from zephon import StaticMixtureWorkSource
from zephon.errors import ConfigError, DataError
from zephon.io import Dataset, read
from zephon.io.listing import list_files
from zephon.types import Chunk, ShardRange

LINE = b'{"text": "a"}\n'


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(LINE)


def test_a_link_to_a_folder_that_it_lies_in_is_not_walked_for_ever(tmp_path: Path) -> None:
    write(tmp_path, "data/a.jsonl", "data/b/c.jsonl", "beside/d.jsonl")
    for name in ("up", "again"):  # two of them: each level would double the walk
        (tmp_path / "data" / "b" / name).symlink_to("..")
        (tmp_path / "beside" / name).symlink_to("../data/b")
    (tmp_path / "data" / "beside").symlink_to("../beside")
    (tmp_path / "data" / "itself.jsonl").symlink_to("itself.jsonl")
    found = list_files(str(tmp_path / "data")).names
    assert {"a.jsonl", "b/c.jsonl", "beside/d.jsonl"} <= {*found}
    assert "b/up/a.jsonl" not in found
    assert len(found) < 20


def test_what_exists_under_a_name_with_the_marks_of_a_glob_is_that_thing(tmp_path: Path) -> None:
    write(tmp_path, "run[1]/a[1].jsonl", "run[1]/b.jsonl", "run1/other.jsonl", "really?/c.jsonl", "reallyx/other.jsonl")
    assert list_files(str(tmp_path / "run[1]")).names == ["a[1].jsonl", "b.jsonl"]
    assert list_files(str(tmp_path / "run[1]" / "a[1].jsonl")).names == ["a[1].jsonl"]
    assert list_files(str(tmp_path / "really?")).names == ["c.jsonl"]
    assert [name.rpartition("/")[2] for name in list_files(str(tmp_path / "run[1]" / "b*")).names] == ["b.jsonl"]
    assert [name.rpartition("/")[2] for name in list_files(str(tmp_path / "run?" / "*")).names] == ["other.jsonl"]


@pytest.mark.parametrize("path", ["", " "])
def test_an_empty_path_is_refused_and_is_not_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    write(tmp_path, "a.jsonl")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="dataset 'd': the path is empty"):
        Dataset.from_path("d", path)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "b.jsonl.bz2",
            "c.json.gz",
            "c.csv",
            "d.csv.zst",
            "e.orc",
            "f.tgz",
            "g.jsonl.part",
            "h.gz",
            "i.txt.xz",
            "J.JSONL.LZ4",
        ),
        *("_more/b.jsonl", ".more/deep/er/b.parquet", ".b.jsonl", "_temporary/0/b.jsonl.gz", "deep/_more/b.jsonl"),
    ],
)
def test_a_name_that_looks_like_data_and_would_not_be_read_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path, "a.jsonl", name)
    with pytest.raises(ConfigError, match=f"holds '{re.escape(name)}', which looks like data"):
        Dataset.from_path("d", str(tmp_path))
    assert Dataset.from_path("d", str(tmp_path / "a*.jsonl")).shards == ("a.jsonl",)


def test_hidden_names_are_refused_far_away_too_and_where_the_format_is_named(tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe({"/hidden/a.jsonl": LINE, "/hidden/_more/b.jsonl": LINE})
    try:
        for fmt in (None, "jsonl"):
            with pytest.raises(ConfigError, match=r"holds '_more/b\.jsonl', which looks like data"):
                Dataset.from_path("d", "memory://hidden", fmt=fmt)
    finally:
        fs.rm("/hidden", recursive=True)


def test_what_usually_lies_beside_data_is_no_data(tmp_path: Path) -> None:
    names = [
        "_SUCCESS",
        "_metadata",
        ".a.jsonl.crc",
        "._a.jsonl",
        "index.json",
        "dataset_info.json",
        "a.jsonl.idx",
        "SHA256SUMS",
    ]
    write(tmp_path, "a.jsonl", *names, "a.jsonl.lock", ".cache/a.jsonl.metadata", ".git/README.md", "_scripts/make.py")
    assert Dataset.from_path("d", str(tmp_path)).shards == ("a.jsonl",)


@pytest.mark.parametrize("suffix", [".jsonl.zstd", ".ndjson.gz", ".ndjson.zst", ".JSONL.GZ"])
def test_every_usual_suffix_of_json_lines_is_read(tmp_path: Path, suffix: str) -> None:
    packed = gzip.compress(LINE) if suffix.lower().endswith("gz") else zstandard.compress(LINE)
    (tmp_path / f"a{suffix}").write_bytes(packed)
    dataset = Dataset.from_path("d", str(tmp_path))
    assert len(read(dataset, Chunk(0, 0, 0, (ShardRange(0, 0, len(packed)),)))) == 1


@pytest.mark.parametrize("kind", ["pipe", "socket"])
@pytest.mark.parametrize("path", ["{}", "{}/*.jsonl", "{}/b.jsonl"], ids=["folder", "glob", "file"])
def test_what_has_a_shards_name_and_is_no_regular_file_is_refused_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, path: str
) -> None:
    write(tmp_path, "a.jsonl")
    monkeypatch.chdir(tmp_path)
    if kind == "pipe":
        os.mkfifo("b.jsonl")
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("b.jsonl")
    with pytest.raises(ConfigError, match=r"b\.jsonl' cannot be used: it is a pipe, a socket or a device"):
        Dataset.from_path("d", path.format(tmp_path))


def test_a_device_is_refused_and_not_read_for_ever() -> None:
    with pytest.raises(ConfigError, match="'/dev/zero' cannot be used: it is a pipe, a socket or a device"):
        Dataset.from_path("d", "/dev/zero", fmt="jsonl")


def test_one_file_under_two_names_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", "more/b.jsonl")
    (tmp_path / "link.jsonl").symlink_to("more/b.jsonl")
    with pytest.raises(ConfigError, match=r"'link\.jsonl' and 'more/b\.jsonl' are the same file"):
        Dataset.from_path("d", str(tmp_path))
    with pytest.raises(ConfigError, match="are the same file"):
        Dataset.from_path("d", str(tmp_path / "**" / "*.jsonl"))
    (tmp_path / "link.jsonl").unlink()
    os.link(tmp_path / "a.jsonl", tmp_path / "z.jsonl")
    with pytest.raises(ConfigError, match=r"'a\.jsonl' and 'z\.jsonl' are the same file"):
        Dataset.from_path("d", str(tmp_path))


@pytest.mark.parametrize("again", ["{}/data/a.jsonl", "{}/data/../data/a.jsonl", "{}//data//a.jsonl", "{}/link", "{}/data/a*"])
def test_one_file_in_two_datasets_of_a_mixture_is_refused(tmp_path: Path, again: str) -> None:
    write(tmp_path, "data/a.jsonl", "data/b.jsonl")
    (tmp_path / "link").symlink_to("data")
    datasets = [Dataset.from_path("x", str(tmp_path / "data")), Dataset.from_path("y", again.format(tmp_path))]
    with pytest.raises(
        ConfigError, match=r"'[^']*a\.jsonl' of 'x' and '[^']*a\.jsonl' of 'y' are the same file|are the same data"
    ):
        StaticMixtureWorkSource(datasets)


def test_one_far_object_in_two_datasets_of_a_mixture_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "data/a.jsonl", "data/b.jsonl")
    with serving(tmp_path) as server:
        datasets = [
            Dataset.from_path("x", f"{server.url}/data/"),
            Dataset.from_path("y", f"{server.url}//data/../data/a.jsonl"),
        ]
        with pytest.raises(ConfigError, match="are the same file"):
            StaticMixtureWorkSource(datasets)


def test_a_glob_finds_files_that_are_linked(tmp_path: Path) -> None:
    write(tmp_path, "far/f.jsonl", "data/a.jsonl")
    (tmp_path / "data" / "b.jsonl").symlink_to(tmp_path / "far" / "f.jsonl")
    (tmp_path / "data" / "folder.jsonl").symlink_to(tmp_path / "far")
    (tmp_path / "data" / "nowhere.jsonl").symlink_to("missing")
    assert list_files(str(tmp_path / "data" / "*.jsonl")).names == ["a.jsonl", "b.jsonl"]


@pytest.mark.skipif(not os.access("/", os.W_OK), reason="only who may write there can try it")
@pytest.mark.parametrize("pattern", ["{}", "{}*"], ids=["a file", "a glob"])
def test_data_in_the_topmost_folder_is_read_from_there(pattern: str) -> None:
    with tempfile.NamedTemporaryFile(dir="/", suffix=".jsonl") as file:
        file.write(LINE)
        file.flush()
        dataset = Dataset.from_path("d", pattern.format(file.name))
        assert dataset.path(0) == file.name
        assert len(read(dataset, Chunk(0, 0, 0, (ShardRange(0, 0, len(LINE)),)))) == 1


def test_a_shard_whose_name_is_not_utf8_is_refused_and_such_a_file_beside_the_data_is_not(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl")
    (tmp_path / os.fsdecode(b"\xff.old")).touch()
    assert Dataset.from_path("d", str(tmp_path)).shards == ("a.jsonl",)
    (tmp_path / os.fsdecode(b"\xff.jsonl")).write_bytes(LINE)
    with pytest.raises(ConfigError, match=r"not UTF-8: '\\udcff\.jsonl'"):
        Dataset.from_path("d", str(tmp_path))


def test_a_folder_too_deep_to_open_is_refused(tmp_path: Path) -> None:
    os.chdir(tmp_path)
    try:
        for _ in range(25):
            os.mkdir("x" * 200)
            os.chdir("x" * 200)
        with pytest.raises(ConfigError, match="name too long"):
            list_files(str(tmp_path))
    finally:
        os.chdir(tmp_path.parent)
        shutil.rmtree(tmp_path)  # by descriptors, as no path is long enough


def test_a_folder_that_may_not_be_read_is_refused() -> None:
    code = """if True:
        import os, sys
        from zephon.errors import ConfigError
        from zephon.io.listing import list_files
        if os.getuid() == 0:
            os.setuid(65534)  # the first user may read everything
        try:
            list_files(sys.argv[1])
        except ConfigError as error:
            print(error.what)
    """
    with tempfile.TemporaryDirectory() as folder:  # not below a folder that only its owner may enter
        write(Path(folder), "a.jsonl", "b/c.jsonl")
        (Path(folder) / "b").chmod(0)
        Path(folder).chmod(0o755)
        done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, timeout=60, check=False)
        (Path(folder) / "b").chmod(0o755)
    assert "Permission denied" in done.stdout, done.stderr


def test_a_folder_that_comes_and_goes_while_it_is_listed_is_there_or_not(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", *(f"{number}/b.jsonl" for number in range(60)))
    over = threading.Event()

    def churn() -> None:
        while not over.is_set():
            shutil.rmtree(tmp_path / "30", ignore_errors=True)
            write(tmp_path, "30/b.jsonl")

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        counts = {len(list_files(str(tmp_path)).names) for _ in range(200)}
    finally:
        over.set()
        thread.join()
    assert counts <= {60, 61}


def test_a_shard_that_has_become_a_pipe_is_an_error_and_not_waited_for(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl")
    dataset = Dataset.from_path("d", str(tmp_path))
    (tmp_path / "a.jsonl").unlink()
    os.mkfifo(tmp_path / "a.jsonl")
    with pytest.raises(DataError, match="is no regular file, but the listing said"):
        read(dataset, Chunk(0, 0, 0, (ShardRange(0, 0, len(LINE)),)))


def test_threads_keep_fewer_files_open_where_the_process_may_have_few(tmp_path: Path) -> None:
    write(tmp_path, *(f"{number:02}.jsonl" for number in range(40)))
    dataset = Dataset.from_path("d", str(tmp_path))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held, most = threading.Barrier(12, timeout=60), []

    def all_shards() -> None:
        for shard in range(40):
            read(dataset, Chunk(0, 0, 0, (ShardRange(shard, 0, len(LINE)),)))
        held.wait()  # all have read, and none has ended
        most.append(len(os.listdir("/proc/self/fd")) - before)
        held.wait()

    before = len(os.listdir("/proc/self/fd"))
    threads = [threading.Thread(target=all_shards) for _ in range(12)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(most) == 12
    assert max(most) < 60
