"""Child processes: the same data as threads, and nothing left behind however anybody ends."""

from __future__ import annotations

import collections
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.engine.parts import until
from tests.engine.recipes import documents, exits, fails, kills, kills_once, small, upper
from tests.laws import Job, assert_restarts, assert_same_data, reference
from zephon.engine.isolated import Isolated
from zephon.errors import ConfigError, DataError, WorkerDied

MODES: list[dict[str, Any]] = [{"runner": "process"}, {"isolated": True}, {"runner": "process", "isolated": True}]


def children() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if "zephon.engine.runners.child" in " ".join(child.cmdline())
    ]


def gone(pids: list[int], seconds: float = 20.0) -> bool:
    return until(lambda: not any(map(_alive, pids)), seconds)


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # also when it goes between the two questions
        return False


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_processes_deliver_the_same_batches_and_states(mode: dict[str, Any]) -> None:
    expected = reference(lambda **options: small(function=upper, **options), 12)
    assert_same_data(lambda **options: small(function=upper, **options), expected, sizes=(1,), **mode)
    with Job(small, **mode) as job, Job(small, runner="inline", prefetch_batches=0) as plain:
        assert job.steps(5) == plain.steps(5)
        assert job.states() == plain.states()
    assert children() == []


def test_an_isolated_engine_restarts_at_other_sizes() -> None:
    expected = reference(small, 4)
    assert_restarts(small, expected, sizes=(1, 2), every=2, isolated=True)


@pytest.mark.parametrize("mode", MODES[:2], ids=str)
def test_an_exception_in_user_code_arrives_with_its_address(mode: dict[str, Any]) -> None:
    with Job(small, function=fails, **mode) as job, pytest.raises(KeyError, match="thirty-seven") as caught:
        job.steps(100)
    assert any("row 37" in note for note in caught.value.__notes__)
    assert children() == []


def test_a_killed_worker_is_replaced_and_the_data_stays_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = reference(small, 20)
    monkeypatch.setenv("ZEPHON_TEST_MARK", str(tmp_path / "killed"))
    assert_same_data(lambda **options: small(function=kills_once, **options), expected, sizes=(1,), runner="process")
    assert (tmp_path / "killed").exists()


def test_a_chunk_that_kills_two_workers_ends_the_run_with_its_address() -> None:
    address = r"shard 'a' of dataset 'd', \d+ to"
    with Job(small, function=kills, runner="process") as job, pytest.raises(WorkerDied, match=address):
        job.steps(100)
    assert children() == []


@pytest.mark.parametrize("mode", MODES[:2], ids=str)
def test_a_function_that_ends_its_process_is_named_as_the_cause(mode: dict[str, Any]) -> None:
    says = r"ended by itself with exit status 3(.|\n)*calls os\._exit\(\)"
    with Job(small, function=exits, **mode) as job, pytest.raises(WorkerDied, match=says):
        job.steps(100)


SCRIPT = """
from tests.engine.recipes import small

def shout(document):
    return {{**document, "text": document["text"].upper()}}

print(len(next(iter(small(function=shout, **{mode}))).slots))
"""


@pytest.mark.parametrize("mode", MODES[:2], ids=str)
def test_a_script_without_a_main_guard_is_told_to_have_one(mode: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(mode=mode))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert 'under: if __name__ == "__main__":' in done.stderr


def test_a_killed_engine_is_an_error_in_bounded_time() -> None:
    pipeline = small(isolated=True)
    batches = iter(pipeline)
    next(batches)
    os.kill(children()[0].pid, signal.SIGKILL)
    begun = time.monotonic()
    with pytest.raises(WorkerDied, match="killed by signal 9"):
        collections.deque(batches, maxlen=0)
    assert time.monotonic() - begun < 20  # seconds on a busy machine; a fraction of one by itself
    assert children() == []


@pytest.mark.parametrize("mode", MODES[:2], ids=str)
def test_a_result_that_cannot_be_read_here_is_an_error_in_bounded_time(mode: dict[str, Any]) -> None:
    begun = time.monotonic()
    with pytest.raises(DataError, match="cannot be read here: LookupError: only there"):
        next(iter(documents(**mode)))
    assert time.monotonic() - begun < 20
    assert until(lambda: children() == [])


def test_a_worker_that_cannot_be_replaced_is_an_error_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = iter(small(function=kills, runner="process", max_workers=1))
    monkeypatch.setattr(sys, "executable", "/no/python/here")
    begun = time.monotonic()
    with pytest.raises(FileNotFoundError, match="no/python/here"):
        collections.deque(batches, maxlen=0)
    assert time.monotonic() - begun < 20
    assert children() == []


@pytest.mark.parametrize("mode", MODES[:2], ids=str)
def test_functions_without_a_name_are_refused_at_once(mode: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="instead of lambdas"):
        next(iter(small(function=lambda document: document, **mode)))
    assert children() == []


def test_a_child_started_from_a_thread_outlives_it() -> None:
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(iter(small(isolated=True))))
    thread.start()
    thread.join()
    assert next(made[0]).step == 0
    made[0].close()


def test_a_closed_isolated_iterator_is_at_its_end() -> None:
    pipeline = small(isolated=True)
    batches = iter(pipeline)
    next(batches)
    assert isinstance(batches.running, Isolated)  # type: ignore[attr-defined]
    pipeline.close()
    assert next(batches, None) is None


PARENT = """
import os, sys, time
from tests.engine.recipes import small
if __name__ == "__main__":
    pipeline = small(**eval(sys.argv[1]))
    batches = iter(pipeline)
    next(batches)
    import psutil
    print(*[child.pid for child in psutil.Process().children(recursive=True)], flush=True)
    if sys.argv[2] == "break":
        sys.exit(0)
    if sys.argv[2] == "exception":
        raise RuntimeError("in the loop")
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("mode", "end"),
    [*((mode, end) for mode in MODES[:2] for end in ("SIGKILL", "SIGTERM", "break", "exception")), (MODES[2], "SIGKILL")],
    ids=str,
)
def test_nothing_is_left_when_the_parent_ends(tmp_path: Path, mode: dict[str, Any], end: str) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    before = set(os.listdir("/dev/shm"))
    with subprocess.Popen(
        [sys.executable, str(script), repr(mode), end],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert pids
        if end.startswith("SIG"):
            parent.send_signal(getattr(signal, end))
        parent.wait(20)
    assert gone(pids)
    assert until(lambda: set(os.listdir("/dev/shm")) <= before)
