"""What ``stop`` and ``rescale`` say about runs that are not what the caller thought."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from tests.launch.written import Written
from zephon.exits import Exit
from zephon.launch.cli.arguments import parse
from zephon.launch.cli.main import main
from zephon.launch.cli.verbs import report_end
from zephon.launch.status import RunStatus


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


def test_a_run_that_failed_before_its_first_step_goes_on_with_the_line_that_was_typed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = parse(["run", "conf=exp1", "nodes=2", "data.datasets.mine.path=my data"]).line
    failed = RunStatus(name="r", url="runs/r", app_id="r-0001", state="FAILED", attempt=1, steps=9, error="no room")
    assert report_end(failed, Console(), again=line) == Exit.FAILED
    (again,) = re.findall(r"go on with: (.*)", capsys.readouterr().err)
    assert shlex.split(again)[-3:] == ["conf=exp1", "nodes=2", "data.datasets.mine.path=my data"]
    assert "resume" not in again
    report_end(dataclasses.replace(failed, step=3), Console(), again=line)
    assert "go on with: zephon resume r" in capsys.readouterr().err
