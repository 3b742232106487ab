"""The list of runs: whole names, the newest first, the cause of a failure before the rank that had it."""

from __future__ import annotations

import pytest

from zephon.launch.cli.views import cause_first, list_lines
from zephon.launch.status import RunStatus

FAILED = "rank 3 on node-1 ended first, with status 65: DataError: row 7 of a.jsonl is broken\n  fix: correct it"


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (FAILED, "DataError: row 7 of a.jsonl is broken (rank 3 on node-1, status 65)"),
        ("rank 0 on node-0: status -9: killed", "killed (rank 0 on node-0, status -9)"),
        ("no space left", "no space left"),
        ("", ""),
    ],
)
def test_the_cause_comes_before_the_rank(error: str, shown: str) -> None:
    assert cause_first(error) == shown


def test_runs_are_listed_the_newest_first_with_whole_names_age_and_duration() -> None:
    name = "a-name-of-63-characters-" + "x" * 39
    runs = [
        RunStatus(name=name, url="", app_id="a", state="FAILED", attempt=1, steps=9, started=100.0, took_s=60.0, error=FAILED),
        RunStatus(name="new", url="", app_id="b", state="DONE", attempt=2, step=9, steps=9, started=5000.0, took_s=7800.0),
    ]
    title, new, old, cause = list_lines(runs, now=5065.0)
    assert title.split() == ["run", "state", "step", "loss", "nodes", "attempt", "started", "ran"]
    assert new.split("  ")[0] == "new"
    assert "1 min 05 s ago" in new
    assert new.endswith("2 h 10 min")
    assert old.startswith(name)
    assert cause.strip().startswith("DataError: row 7")
