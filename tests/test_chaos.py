"""Thirty random events on a run of the real trainer; and what reads the ledger afterwards sees each kind of fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.chaos import Real, chaos
from tests.chaos_ledger import faults
from tests.chaos_places import small_disk

DIGESTS = [f"digest-{step}" for step in range(10)]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore:a torn line:UserWarning")
def test_thirty_random_events_leave_the_ledger_of_a_run_that_nobody_disturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with small_disk(tmp_path / "runs") as disk:
        print(chaos(Real(str(tmp_path / "runs")), events=30, seed=7, disk=disk))


def written(*runs: tuple[int, int, range]) -> list[dict[str, Any]]:
    return [
        {"attempt": attempt, "generation": generation, "step": step, "digest": DIGESTS[step]}
        for attempt, generation, steps in runs
        for step in steps
    ]


def test_a_ledger_with_repeated_steps_is_good() -> None:
    assert faults(written((1, 1, range(4)), (1, 2, range(2, 6)), (2, 3, range(6, 9))), DIGESTS) == []


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (written((1, 1, range(3)), (2, 2, range(3, 5)), (1, 1, range(3, 4))), "wrote after"),
        (written((1, 1, range(3)), (1, 2, range(4, 6))), "were never trained"),
        (written((1, 1, range(3)), (1, 1, range(4, 6))), "step 4 after step 2"),
        ([*written((1, 1, range(2))), {**written((1, 1, range(2, 3)))[0], "digest": "other"}], "another digest"),
    ],
)
def test_each_fault_of_a_ledger_is_seen(lines: list[dict[str, Any]], words: str) -> None:
    assert any(words in fault for fault in faults(lines, DIGESTS))
