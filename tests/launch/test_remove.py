"""``rm``: a run that has ended goes, after a question; one that is under way stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.written import Written
from zephon.exits import Exit
from zephon.launch.cli.main import main


@pytest.fixture
def runs(written: Written) -> str:
    return str(Path(written.rundir.root).parent)


def test_a_run_that_has_ended_is_removed_and_its_neighbours_stay(
    written: Written, runs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written.supervisor(state="STOPPED").progress().close()
    other = Written(tmp_path, name="other")
    assert main(["rm", "toy", f"runs={runs}", "--yes"]) == 0
    assert "removed toy" in capsys.readouterr().out
    assert not Path(written.rundir.root).exists()
    assert other.rundir.holds_run()


def test_a_run_that_is_under_way_is_not_removed(written: Written, runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    written.supervisor().progress()
    assert main(["rm", "toy", f"runs={runs}", "--yes"]) == Exit.REFUSED
    assert "zephon stop toy" in capsys.readouterr().err
    assert written.rundir.holds_run()


def test_without_a_name_nothing_is_removed(written: Written, runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    written.supervisor(state="DONE").progress()
    assert main(["rm", f"runs={runs}", "--yes"]) == Exit.REFUSED
    assert "zephon rm RUN" in capsys.readouterr().err
    assert written.rundir.holds_run()


def test_where_nobody_can_answer_the_line_to_type_is_named(
    written: Written, runs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    written.supervisor(state="DONE").progress()
    assert main(["rm", "toy", f"runs={runs}"]) == Exit.REFUSED
    assert "zephon rm toy --yes" in capsys.readouterr().err
    assert written.rundir.holds_run()
