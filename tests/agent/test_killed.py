"""A worker that a signal ended which nobody here has sent: what is known of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agent.toy import Toy
from zephon.agent.killed import OutOfMemory

LIMIT = 1 << 30


@pytest.mark.parametrize(
    ("name", "text"), [("memory.events", "low 0\noom 1\noom_kill {}\n"), ("memory.oom_control", "under_oom 0\noom_kill {}\n")]
)
def test_kills_since_the_start_are_named_with_the_peak_and_the_last_line(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text.format(3))
    memory = OutOfMemory(tmp_path)
    kept = memory.explain(9, peak=3 << 29, said="step 7/9")
    assert kept == (
        "killed by signal 9 (SIGKILL), not by us; peak memory 1.50 GiB; by the kernel for memory or by hand "
        "(kills for memory: none in this control group); its log ends: step 7/9"
    )
    (tmp_path / name).write_text(text.format(5))
    assert memory.explain(9, peak=0, said="") == (
        "killed by signal 9 (SIGKILL), not by us; out of memory: the kernel killed 2 processes of this control group"
    )


def test_where_the_count_cannot_be_read_that_is_said(tmp_path: Path) -> None:
    memory = OutOfMemory(tmp_path / "none")
    assert "its count cannot be read here" in memory.explain(9, peak=1, said="")
    assert memory.explain(11, peak=0, said="") == "killed by signal 11 (SIGSEGV), not by us"
    assert memory.explain(123, peak=0, said="") == "killed by signal 123, not by us"


@contextlib.contextmanager
def inside(group: Path) -> Iterator[None]:
    """Within the block this process, and so all that it starts, is in a control group."""
    home = Path("/proc/self/cgroup").read_text().splitlines()
    memory = next((line.split(":", 2)[2] for line in home if ":memory:" in line), None)
    mounted = Path("/sys/fs/cgroup/memory" if memory is not None else "/sys/fs/cgroup")
    before = mounted / (memory if memory is not None else home[-1].split(":", 2)[2]).lstrip("/")
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (before / "cgroup.procs").write_text(str(os.getpid()))


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with little memory and no swap; skips where this user may make none."""
    old = Path("/sys/fs/cgroup/memory")
    made = (old if old.is_dir() else Path("/sys/fs/cgroup")) / f"zephon-test-{os.getpid()}"
    limits = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes") if old.is_dir() else ("memory.max", "memory.swap.max")
    try:
        made.mkdir()
        (made / limits[0]).write_text(str(LIMIT))
        with contextlib.suppress(OSError):  # a kernel that does not count swap
            (made / limits[1]).write_text(str(LIMIT) if old.is_dir() else "0")
    except OSError as error:
        with contextlib.suppress(OSError):
            made.rmdir()
        pytest.skip(f"no control group can be made here: {error}")
    yield made
    made.rmdir()


@pytest.mark.slow
def test_a_worker_that_the_kernel_kills_for_memory_is_named_with_its_peak_and_the_groups_count(
    group: Path, toy: Callable[..., Toy]
) -> None:
    run = toy(nodes=1, steps=20, step_s=0.05, faults={"6": "eat"})
    with inside(group):
        run.start()
    done = run.wait_end(120)
    assert done.state == "DONE", "the next generation goes on from the last checkpoint"
    (error,) = [event["error"] for event in run.events("workers_exited") if event["error"]]
    begins = "killed by signal 9 (SIGKILL), not by us; peak memory "
    assert error["status"] == -9
    assert error["message"].startswith(begins)
    assert 0.2 < float(error["message"].removeprefix(begins).split()[0]) <= LIMIT / (1 << 30)
    assert "out of memory: the kernel killed 1 process of this control group" in error["message"]
    assert error["message"] in run.status().error
    run.end()
