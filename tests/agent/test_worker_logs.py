"""What a worker's log says of its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from zephon.agent.worker_logs import last_error, mark_start, stuck_frame

TRACEBACK = """Traceback (most recent call last):
  File "worker.py", line 3, in main
    step()
ValueError: no step
"""
OURS = """[rank 3] DataError: shard 7 cannot be read
  what would follow: its documents would be missing
  what to do: look at it
"""
STACKS = """Thread 0x01 (most recent call first):
  File "threading.py", line 10 in wait

Thread 0x02 (most recent call first):
  File "{file}", line 7 in {function}
  File "worker.py", line 3 in main
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "rank-0.log"


def write(log: Path, *texts: str) -> str:
    """A log of one start after another."""
    for number, text in enumerate(texts):
        mark_start(str(log), generation=number, rank=0, world_size=2)
        with open(log, "a", encoding="utf-8") as file:
            file.write(text)
    return str(log)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", ""),
        ("step 1\nstep 2\n\n", "step 2"),
        (TRACEBACK, "ValueError: no step"),
        (TRACEBACK + "cleaning up\n", "ValueError: no step"),
        (TRACEBACK + OURS + "cleaning up\n", OURS.removeprefix("[rank 3] ").rstrip()),
        ("x" * 600, "x" * 500),
    ],
    ids=["silent", "a last line", "a traceback", "a traceback and more", "an error of three parts", "a long line"],
)
def test_the_error_that_says_most_is_found(log: Path, text: str, error: str) -> None:
    assert last_error(write(log, text)) == error


def test_only_what_came_after_the_last_start_counts(log: Path) -> None:
    assert last_error(write(log, TRACEBACK, "step 1\n")) == "step 1"
    assert last_error(write(log, "")) == ""


def test_a_log_that_is_not_there_says_nothing(log: Path) -> None:
    assert (last_error(str(log)), stuck_frame(str(log))) == ("", "")


def test_only_the_end_of_a_long_log_is_read(log: Path) -> None:
    assert last_error(write(log, "step\n" * 50_000 + TRACEBACK)) == "ValueError: no step"


def test_a_stuck_worker_is_named_by_the_frame_of_its_main_thread(log: Path) -> None:
    assert stuck_frame(write(log, STACKS.format(file="data.py", function="read"))) == 'File "data.py", line 7 in read'


@pytest.mark.parametrize("file", ["torch/distributed/distributed_c10d.py", "torch/autograd/graph.py"])
def test_a_worker_that_waits_for_others_is_not_the_stuck_one(log: Path, file: str) -> None:
    assert stuck_frame(write(log, STACKS.format(file=file, function="wait"))) == ""


def test_a_log_without_stacks_names_no_frame(log: Path) -> None:
    assert stuck_frame(write(log, "step 1\n")) == ""
