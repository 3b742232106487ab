"""A worker that a signal ended which nobody here has sent: what is known of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from zephon.agent.killed import OutOfMemory


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
