"""Storage: local files are read directly, everything else through fsspec."""

from __future__ import annotations

import pickle
from pathlib import Path

import fsspec
import pytest

from zephon.errors import ConfigError
from zephon.io.storage import LOCAL, filesystem, is_local, read_range, read_scratch


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "a").write_bytes(bytes(range(100)))
    return str(tmp_path / "a")


def test_paths_are_local_also_by_url_and_relative_ones_begin_at_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert filesystem("data/a.jsonl") == (LOCAL, str(tmp_path / "data" / "a.jsonl"))
    assert filesystem(f"file://{tmp_path}/a") == (LOCAL, str(tmp_path / "a"))
    assert filesystem("/") == (LOCAL, "/")


def test_other_schemes_are_fsspecs_and_an_unknown_one_is_named() -> None:
    fs, path = filesystem("memory://bucket/a")
    assert (is_local(fs), path) == (False, "/bucket/a")
    with pytest.raises(ConfigError, match="nowhere") as caught:
        filesystem("nowhere://bucket/a")
    assert "nowhere" in caught.value.remedy


def test_local_files_are_one_object_in_every_process_and_answer_what_fsspec_answers(file: str) -> None:
    assert is_local(pickle.loads(pickle.dumps(LOCAL)))
    assert (LOCAL.exists(file), LOCAL.isdir(file), LOCAL.size(file)) == (True, False, 100)
    assert LOCAL.info(file)["size"] == 100
    assert LOCAL.cat_file(file, start=3, end=5) == b"\x03\x04"
    with LOCAL.open(file) as opened:
        assert opened.read(2) == b"\x00\x01"


@pytest.mark.parametrize("local", [True, False])
def test_a_range_is_read_up_to_the_files_end(file: str, local: bool) -> None:
    fs, path = filesystem(file)
    if not local:
        fs, path = fsspec.filesystem("memory"), "/ranges/a"
        fs.pipe_file(path, bytes(range(100)))  # type: ignore[attr-defined]
    assert read_range(fs, path, 10, 13) == bytes([10, 11, 12])
    assert read_range(fs, path, 98, 200) == bytes([98, 99])
    memory, count = read_scratch(fs, path, 98, 200, ("listing", 0), 100)
    assert bytes(memory[:count]) == bytes([98, 99])


def test_scratch_memory_is_written_over_by_the_next_call(file: str) -> None:
    first, count = read_scratch(LOCAL, file, 0, 4, ("listing", 1), 100)
    assert bytes(first[:count]) == bytes([0, 1, 2, 3])
    second, _ = read_scratch(LOCAL, file, 50, 54, ("listing", 1), 100)
    assert second is first
    assert bytes(first[:4]) == bytes([50, 51, 52, 53])
