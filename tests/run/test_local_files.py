"""The local disk under fsspec's names: it says the same as fsspec does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem

from zephon.run.directory import RunDir
from zephon.run.local_files import LocalFiles, local_path

OURS, FSSPEC = LocalFiles(), LocalFileSystem()


def test_it_answers_as_fsspec_does(tmp_path: Path) -> None:
    top = str(tmp_path)
    (tmp_path / "below").mkdir()
    for name in ("b", "a", "below/c"):
        (tmp_path / name).write_bytes(b"0123456789"[: len(name) + 2])
    file = f"{top}/below/c"
    for start, end in ((None, None), (2, None), (2, 5), (None, 3), (5, 99), (99, None)):
        assert OURS.cat_file(file, start, end) == FSSPEC.cat_file(file, start, end)
    for path in (top, file, f"{top}/none"):
        assert (OURS.exists(path), OURS.isdir(path)) == (FSSPEC.exists(path), FSSPEC.isdir(path))
    assert sorted(OURS.ls(top)) == sorted(FSSPEC.ls(top, detail=False))
    assert {i["name"]: i["size"] for i in OURS.ls(top, detail=True) if i["type"] == "file"} == {f"{top}/a": 3, f"{top}/b": 3}
    assert OURS.find(top) == FSSPEC.find(top)
    assert {path: info["size"] for path, info in OURS.find(top, detail=True).items()} == {
        path: info["size"] for path, info in FSSPEC.find(top, detail=True).items()
    }
    assert (OURS.size(file), OURS.du(top), OURS.du(file)) == (FSSPEC.size(file), FSSPEC.du(top), FSSPEC.du(file))
    assert {key: OURS.info(file)[key] for key in ("name", "size", "type", "mtime")} == {
        key: FSSPEC.info(file)[key] for key in ("name", "size", "type", "mtime")
    }
    assert OURS.unstrip_protocol(file) == FSSPEC.unstrip_protocol(file)
    for call in (OURS.ls, OURS.size, OURS.rm_file, OURS.info):
        with pytest.raises(FileNotFoundError):
            call(f"{top}/none")
    OURS.rm(f"{top}/a")
    OURS.rm(f"{top}/below", recursive=True)
    assert OURS.find(top) == [f"{top}/b"]


@pytest.mark.parametrize("url", ["runs/x", "/runs/x/", "~/x", "file:///runs/x", "file://runs/x", "local:///runs/x", "a b"])
def test_a_path_is_the_one_that_fsspec_makes_of_it(url: str) -> None:
    assert local_path(url) == RunDir(url).root == FSSPEC._strip_protocol(url)


@pytest.mark.parametrize("url", ["s3://bucket/run", "memory://x", "simplecache::s3://bucket/x", "filecache::file:///x"])
def test_anything_else_is_not_on_this_disk(url: str) -> None:
    assert local_path(url) is None


def test_a_run_directory_on_this_machine_is_on_its_disk(tmp_path: Path) -> None:
    rundir = RunDir(os.path.relpath(tmp_path))
    assert (rundir.local, rundir.root) == (True, str(tmp_path))
    assert not RunDir("memory://x").local
