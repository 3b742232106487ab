"""Claims of a run: of processes that claim at the same instant one gets it, and a lower one never gets it again."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import fsspec
import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from zephon.errors import ConfigError, Superseded
from zephon.run.directory import RunDir
from zephon.run.generation import Generation, claim, newest_claim, read_generation

CLAIMERS = 4
CLAIM = """
import sys, time
from zephon.errors import Superseded
from zephon.run.directory import RunDir
from zephon.run.generation import Generation, claim, newest_claim
rundir, number = RunDir(sys.argv[1]), int(sys.argv[2])
newest_claim(rundir)  # the client is loaded and connected
print("ready", flush=True)
begin = float(sys.stdin.readline())
while time.time() < begin:
    pass
try:
    claim(rundir, Generation(attempt=1, generation=1, nodes=(f"node-{number}",), world_size=1, time=0.0))
    print("claimed")
except Superseded:
    print("superseded")
"""


def of(attempt: int, generation: int) -> Generation:
    return Generation(attempt=attempt, generation=generation, nodes=("node-0",), world_size=1, time=12.5)


def claim_at_once(url: str) -> None:
    command = [sys.executable, "-c", CLAIM, url]
    started = [
        subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in range(CLAIMERS)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    begin = f"{time.time() + 0.2}\n"
    answers = [process.communicate(begin, timeout=60)[0].strip() for process in started]
    assert sorted(answers) == ["claimed", *["superseded"] * (CLAIMERS - 1)]
    newest = read_generation(RunDir(url))
    assert newest is not None
    assert newest.nodes == (f"node-{answers.index('claimed')}",)


def test_of_processes_that_claim_at_the_same_instant_one_gets_it_on_a_file_system(tmp_path: Path) -> None:
    claim_at_once(str(tmp_path / "run"))


@pytest.mark.slow
def test_of_processes_that_claim_at_the_same_instant_one_gets_it_on_an_object_store(objects: str) -> None:
    RunDir(f"{objects}/run").check_exclusive()
    claim_at_once(f"{objects}/run")


def test_a_claim_below_the_newest_is_refused_whichever_attempt_makes_it(tmp_path: Path) -> None:
    rundir = RunDir(str(tmp_path))
    assert newest_claim(rundir) == (0, 0)
    for order in ((1, 1), (1, 2), (2, 3), (10, 4)):
        claim(rundir, of(*order))
        assert newest_claim(rundir) == order
    with pytest.raises(Superseded, match="attempt 10 trains this run now and this process belongs to attempt 2"):
        claim(rundir, of(2, 99))
    with pytest.raises(Superseded, match="generation 4 trains this run now and this process belongs to generation 3"):
        claim(rundir, of(10, 3))
    with pytest.raises(Superseded, match="another coordinator of attempt 10 has claimed generation 4"):
        claim(rundir, of(10, 4))
    assert read_generation(rundir) == of(10, 4)


class LooksFirst(MemoryFileSystem):
    """A client like that of most of fsspec's stores: it looks, and then writes."""

    protocol, store, pseudo_dirs = "looksfirst", {}, [""]
    pipe_file = AbstractFileSystem.pipe_file


class Overwrites(MemoryFileSystem):
    """A server that does not know the condition, as older ones that speak S3."""

    protocol, store, pseudo_dirs = "overwrites", {}, [""]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: object) -> None:
        super().pipe_file(path, value)


@pytest.mark.parametrize(
    ("store", "why"), [(LooksFirst, "its client \\(LooksFirst\\) cannot"), (Overwrites, "its server overwrote")]
)
def test_a_store_that_cannot_keep_two_attempts_apart_is_refused_with_the_reason(
    store: type[MemoryFileSystem], why: str
) -> None:
    fsspec.register_implementation(store.protocol, store, clobber=True)
    with pytest.raises(ConfigError, match=why):
        RunDir(f"{store.protocol}://run").check_exclusive()


def test_a_store_with_conditional_writes_is_taken_and_the_proof_leaves_nothing() -> None:
    rundir = RunDir("memory://exclusive")
    rundir.check_exclusive()
    assert rundir.fs.find(rundir.root) == []


def test_a_file_system_without_hard_links_creates_once_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", no_links)
    rundir = RunDir(str(tmp_path))
    assert [rundir.create("once.json", data=number) for number in range(2)] == [True, False]
    assert rundir.read_json("once.json") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["once.json"]
