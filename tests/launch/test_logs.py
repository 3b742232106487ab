"""The logs of a run: merged by time, each line with the rank and level that it belongs to."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import pytest

from tests.launch.written import Written
from zephon.launch.cli.logs import Tail, level_of, merged
from zephon.launch.cli.main import main


def test_logs_are_merged_by_time_follow_new_lines_and_filter_by_rank(tmp_path: Path) -> None:
    mark = "--- 2025-12-30T10:00:00Z generation 1 rank {} of 3"
    early = "2026-01-01 10:00:01,5 a"
    for node, rank, lines in (("node-0", 0, ["2026-01-01T10:00:02 b", "  trace of b"]), ("node-1", 1, [early])):
        path = tmp_path / node / "rank-0.log"
        path.parent.mkdir()
        path.write_text("\n".join([mark.format(rank), *lines]) + "\n")
    (tmp_path / "node-1" / "rank-1.log").write_text(mark.format(2) + "\n2026-01-01T10:00:03 c\nhalf a li")
    tails: dict[Path, Tail] = {}
    found = [line for _, line in merged(tmp_path, tails) if not line.startswith("---")]
    assert found == [early, "2026-01-01T10:00:02 b", "  trace of b", "2026-01-01T10:00:03 c"]
    with open(tmp_path / "node-1" / "rank-1.log", "a") as file:
        file.write("ne\n")
    assert list(merged(tmp_path, tails)) == [("rank 2 (node-1)", "half a line")]
    assert [name for name, _ in merged(tmp_path, {}, rank=2)] == ["rank 2 (node-1)"] * 3


def test_a_rank_that_the_attempt_never_had_is_refused_with_its_ranks_and_a_tail_is_the_last_lines(
    written: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    written.supervisor(state="DONE").progress()
    folder, runs = Path(written.rundir.path("attempts", "0001", "logs", "node-0")), Path(written.rundir.root).parent
    folder.mkdir(parents=True)
    for rank in range(2):
        mark = f"--- 2025-12-30T10:00:00Z generation 1 rank {rank} of 2"
        (folder / f"rank-{rank}.log").write_text("\n".join([mark, "one", "two", "three", ""]))
    assert main(["logs", "toy", "--rank", "9", f"runs={runs}"]) == 65
    shown = capsys.readouterr()
    assert "attempt 1 of toy has no rank 9" in shown.err
    assert "its ranks are 0, 1" in shown.err
    assert main(["logs", "toy", "--rank", "1", "--tail", "2", f"runs={runs}"]) == 0
    assert capsys.readouterr().out.splitlines() == ["rank 1 (node-0) | two", "rank 1 (node-0) | three"]


def test_a_line_belongs_to_the_global_rank_of_its_generation(tmp_path: Path) -> None:
    path = tmp_path / "node-3" / "rank-0.log"
    path.parent.mkdir()
    marks = [f"--- 2026-01-01T10:0{n}:00Z generation {n} rank {rank} of 4" for n, rank in ((1, 3), (2, 1))]
    path.write_text("\n".join([marks[0], "old", marks[1], "new", ""]))
    assert [line for _, line in merged(tmp_path, {}, rank=3)] == [marks[0], "old"]
    assert [line for _, line in merged(tmp_path, {}, rank=1)] == [marks[1], "new"]


def test_last_words_without_a_stamp_come_when_the_file_was_last_written(tmp_path: Path) -> None:
    now = time.time()
    for name, text in (
        ("a", "2026-01-01T10:00:00Z start\nTraceback (most recent call last):\nValueError: boom\n"),
        ("b", f"2026-01-01T10:00:01Z start\n{datetime.fromtimestamp(now - 60):%Y-%m-%d %H:%M:%S} before\n"),
    ):
        (tmp_path / f"{name}.log").write_text(text)
    assert [line for _, line in merged(tmp_path, {})][-2:] == ["Traceback (most recent call last):", "ValueError: boom"]


@pytest.mark.parametrize(
    ("line", "level"),
    [("2026 I zephon.agent: started", 1), ("[W1129 socket.cpp] WARNING: slow", 2), ("ValueError: an error", 3), ("step 3", 1)],
)
def test_levels_are_read_from_the_line(line: str, level: int) -> None:
    assert level_of(line) == level
