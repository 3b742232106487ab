"""Sweeps: which runs, how many at once, and what the end says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.toy import WORKER, Toy
from zephon.launch.backends.local.index import apps
from zephon.launch.cli.arguments import parse
from zephon.launch.cli.main import main
from zephon.launch.cli.sweep import expand, points
from zephon.launch.status import run_names, status_of
from zephon.run.directory import RunDir
from zephon.run.supervisor_files import supervisor_lives

Maker = Callable[..., Toy]


def test_alternatives_multiply_and_the_last_word_varies_fastest() -> None:
    found = expand(["conf=a,b", "nodes=2", "data.seed=1,2", "name=x"])
    assert [overrides for overrides, _ in found] == [
        ("conf=a", "nodes=2", "data.seed=1", "name=x"),
        ("conf=a", "nodes=2", "data.seed=2", "name=x"),
        ("conf=b", "nodes=2", "data.seed=1", "name=x"),
        ("conf=b", "nodes=2", "data.seed=2", "name=x"),
    ]
    assert found[0][1] == ("conf=a", "data.seed=1")


def test_a_point_is_named_by_its_resolved_experiment(tmp_path: Path) -> None:
    def names(*overrides: str) -> list[str]:
        return [point.rundir.root.rsplit("/", 1)[-1] for point in points(parse([*overrides, "-m", f"runs={tmp_path}"]))]

    both = names("conf=exp1,bytes", "data.seed=1,2")
    assert len(set(both)) == 4
    assert [name.rsplit("-", 1)[0] for name in both] == ["exp1", "exp1", "bytes", "bytes"]
    assert names("conf=exp1", "data.seed=2") == [both[1]], "the same experiment has the same name in every sweep"


def toy_sweep(toy: Toy, tmp_path: Path, *overrides: str) -> list[str]:
    tree = {key: value for key, value in toy.spec.to_dict().items() if key not in ("runs", "scheduler")}
    path = tmp_path / "sweep.yaml"
    path.write_text(json.dumps(tree))
    toy._export()
    return [f"conf={path}", f"runs={tmp_path / 'sweeps'}", "--worker", WORKER, "-m", *overrides]


def end_all(tmp_path: Path) -> None:
    assert [app.app_id for app in apps() if supervisor_lives(app.rundir, app.attempt)] == []


@pytest.mark.slow
def test_a_sweep_runs_its_points_within_the_limit_and_a_second_time_does_nothing(
    toy: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = toy_sweep(toy(nodes=1, steps=3, step_s=0.0), tmp_path, "data.seed=1,2,3", "--limit", "2")
    assert main(argv) == 0, capsys.readouterr()
    text = capsys.readouterr().out
    assert text.count("DONE") == 3
    names = run_names(str(tmp_path / "sweeps"))
    assert len(names) == 3
    assert main(argv) == 0
    assert capsys.readouterr().out.count("3/3") == 3, "what is done already is in the table with its steps"
    assert [RunDir(str(tmp_path / "sweeps" / name)).attempts() for name in names] == [[1]] * 3
    end_all(tmp_path)


@pytest.mark.slow
def test_a_sweep_goes_on_after_a_failure_or_stops_at_the_first_and_names_every_error(
    toy: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = toy(nodes=1, exit_at_start=3)
    argv = toy_sweep(broken, tmp_path, "data.seed=1,2", "--limit", "1")
    assert main([*argv, "--fail-fast"]) == 1
    text = capsys.readouterr().out
    assert "NOT STARTED" in text
    assert main(argv) == 1
    text = capsys.readouterr().out
    assert text.count("before the first step") == 2
    states = [status_of(RunDir(str(tmp_path / "sweeps" / name))).state for name in run_names(str(tmp_path / "sweeps"))]
    assert states == ["FAILED", "FAILED"]
    end_all(tmp_path)
