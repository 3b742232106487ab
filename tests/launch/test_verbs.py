"""What ``stop`` and ``rescale`` say about runs that are not what the caller thought."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.written import Written
from zephon.exits import Exit
from zephon.launch.cli.main import main


def test_rescale_of_a_finished_run_says_that_it_is_finished(written: Written, capsys: pytest.CaptureFixture[str]) -> None:
    written.supervisor(state="DONE", status=0).progress(step=100)
    assert main(["rescale", "toy", "nodes=1", f"runs={Path(written.rundir.root).parent}"]) == Exit.REFUSED
    assert "toy is finished: 100 of 100 steps are done" in capsys.readouterr().err


def test_rescale_of_a_stopped_run_names_the_line_to_go_on_with(written: Written, capsys: pytest.CaptureFixture[str]) -> None:
    written.supervisor(state="STOPPED").progress()
    runs = Path(written.rundir.root).parent
    assert main(["rescale", "toy", "nodes=1", f"runs={runs}"]) == Exit.REFUSED
    assert f"zephon resume toy runs={runs} nodes=1" in capsys.readouterr().err


def test_stop_without_a_name_asks_where_several_runs_are_running(
    written: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written.supervisor().progress()
    other = Written(tmp_path, name="other").supervisor().progress()
    assert main(["stop", f"runs={Path(written.rundir.root).parent}"]) == Exit.REFUSED
    shown = capsys.readouterr()
    assert "2 runs are running; which one stops?" in shown.err
    assert "zephon stop other | toy" in shown.err
    other.close()
