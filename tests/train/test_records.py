"""The files of rank 0, also where a file cannot be appended to."""

from __future__ import annotations

from typing import Any

import fsspec
import pytest

from tests.train.ranks import Meet, on_ranks
from tests.train.test_worker import write_run
from zephon.errors import Superseded
from zephon.run.checkpoints import complete_steps
from zephon.run.directory import RunDir
from zephon.run.metrics import series
from zephon.run.mirror import Mirror
from zephon.train import worker


def far_run(meet: Meet, rank: int) -> list[Any]:
    """Two attempts in one process's memory file system, which stands for an object store; the second trains on."""
    url, found = "memory://far/run", []
    for attempt, steps in [(1, 4), (2, 6)]:
        write_run(url, attempt, trainer__steps=steps, checkpoint__every=4)
        status = worker.main(url, attempt)
        run = RunDir(url)
        lines = run.fs.cat_file(run.path("ledger.jsonl")).splitlines()
        found.append((status, len(lines), [one["step"] for one in series(run)], complete_steps(run)))
    return found


def test_a_run_in_far_storage_keeps_ledger_metrics_and_checkpoints_there_and_resumes():
    (found,) = on_ranks(far_run, 1)
    assert found == [(0, 4, list(range(4)), [4]), (0, 6, list(range(6)), [4, 6])]


def test_a_mirror_of_a_local_file_is_the_file(tmp_path):
    mirror = Mirror(RunDir(str(tmp_path)), "ledger.jsonl")
    assert mirror.path == tmp_path / "ledger.jsonl"
    mirror.close()


def test_a_mirror_brings_the_far_file_and_takes_it_back():
    fsspec.filesystem("memory").pipe_file("/mirror/log", b"one\n")
    mirror = Mirror(RunDir("memory://mirror"), "log")
    with mirror.path.open("ab") as file:
        file.write(b"two\n")
    assert RunDir("memory://mirror").fs.cat_file("/mirror/log") == b"one\n"
    mirror.push()
    assert RunDir("memory://mirror").fs.cat_file("/mirror/log") == b"one\ntwo\n"
    folder = mirror.path.parent
    mirror.close()
    assert not folder.exists()


def test_a_process_that_has_been_superseded_leaves_the_far_file_to_the_newer_one():
    run, name = RunDir("memory://superseded"), "ledger"

    def fenced() -> None:
        raise Superseded("a newer generation", remedy="nothing")

    older, newer = Mirror(run, name, fence=fenced), Mirror(run, name)
    older.path.write_bytes(b"older\n")
    newer.path.write_bytes(b"newer\n")
    with pytest.raises(Superseded):
        older.push()
    older.close()
    assert not run.exists(name)
    newer.close()
    assert run.fs.cat_file(run.path(name)) == b"newer\n"


def test_what_an_older_process_wrote_meanwhile_does_not_keep_the_newest_from_writing():
    run, name = RunDir("memory://late"), "ledger"
    newest = Mirror(run, name)
    newest.path.write_bytes(b"newest\n")
    run.write_bytes(name, data=b"by a process that was paused between its look and its write\n")
    newest.close()
    assert run.fs.cat_file(run.path(name)) == b"newest\n"
