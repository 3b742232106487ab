"""The page as text: what it says of runs that their real writers have left, and that it needs nothing beside it."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.report.written import write_resize, write_run
from zephon.errors import ConfigError
from zephon.launch.cli.main import main
from zephon.report.charts import Painter
from zephon.report.page import page
from zephon.report.run import read_run
from zephon.report.stage import report
from zephon.run.directory import RunDir
from zephon.run.evaluation import HeldOutLoss, TaskScore, write_evaluation, write_tasks
from zephon.run.specs import newest_spec
from zephon.stages.process import run_stage
from zephon.stages.stage import stages_of

pytest.importorskip("plotly")
LEGS = [(0, 120, 4), (100, 240, 2), (240, 300, 1)]


class Reader(HTMLParser):
    """Every element's attributes, and the text of those with an id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "action", "poster", "srcset")]
        self.ids += [value or "" for name, value in attrs if name == "id"]


def numbers(array: dict[str, str]) -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(array["bdata"]), f"<{array['dtype']}")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    rundir = write_run(str(tmp_path_factory.mktemp("runs") / "exp1"), LEGS, bad=177)
    write_resize(rundir, 2, 99, 2)
    write_evaluation(rundir, HeldOutLoss(step=300, loss=2.5, tokens=64, by_dataset={"books": 2.25}))
    write_tasks(rundir, [TaskScore(task="arc", step=300, items=8, correct=4, baseline=0.25)])
    return rundir


@pytest.fixture(scope="module")
def text(run: RunDir) -> str:
    return page([read_run(run, state="DONE")])


def test_a_page_is_one_file_that_asks_for_nothing(text: str) -> None:
    read = Reader(text)
    assert all(link.startswith("#") for link in read.links)
    assert "default-src 'none'" in text
    assert len(text) < 8_000_000
    assert text.count("plotly.js v") == 1
    assert len(set(read.ids)) == len(read.ids), "one id for two elements"


def test_a_page_says_what_the_run_has_left(text: str) -> None:
    visible = re.sub(r"<script.*?</script>|<style.*?</style>", "", text, flags=re.S)
    for part in (
        "300 of 300",
        f"{300 * 1024:,}",
        "4 → 2 → 1",
        "torch ",
        "Equal: 20 steps were trained more than once",
        "quarantined: no text",
        "web, web.jsonl, row 4,103",
        "2.9 MiB",
        "conf/model/tiny.yaml",
        "command line",
        "rescale",
        ">75.00%<",
        "loss 2.2500",
        ">0.3333<",
    ):
        assert part in visible, part


def test_a_chart_keeps_its_extremes_and_the_place_of_each_point_by_step_and_by_token(run: RunDir) -> None:
    charts = {chart.id: chart for chart in Painter([read_run(run)]).charts()}
    wanted = {"loss", "lr", "norm", "speed", "phases-0", "waiting", "shares-0", "dataset-loss-0", "padding", "segments"}
    assert charts.keys() == wanted
    traces = [trace for trace in charts["loss"].traces if "mark" not in trace]
    assert [trace["name"] for trace in traces] == ["4 ranks", "2 ranks", "1 rank", "held-out loss"]
    losses = np.concatenate([numbers(trace["y"]) for trace in traces])
    steps = np.concatenate([numbers(trace["step"]) for trace in traces])
    tokens = np.concatenate([numbers(trace["token"]) for trace in traces])
    assert steps[losses.argmax()] == 178
    np.testing.assert_array_equal(tokens, steps * 1024)
    marks = [text for trace in charts["loss"].traces if "mark" in trace for text in trace["text"]]
    assert marks == [
        "attempt 2 goes on from step 100 with 4 → 2 ranks",
        "attempt 3 goes on from step 240 with 2 → 1 ranks",
        "step 33: loss is not finite",
    ]


def test_several_runs_are_beside_each_other_and_only_what_differs_is_listed(run: RunDir, tmp_path: Path) -> None:
    other = write_run(str(tmp_path / "exp2"), [(0, 200, 8)], optimizer__lr=0.5)
    changed = write_run(str(tmp_path / "<b>exp3"), [(0, 300, 2)], changed=9)
    both = page([read_run(run), read_run(other), read_run(changed)])
    visible = re.sub(r"<script.*?</script>", "", both, flags=re.S)
    assert "Equal: all 200 common steps had the same global batch" in visible
    assert "NOT EQUAL: step 9 is the first of 300 common steps" in visible
    assert "optimizer.lr" in visible
    assert "data.datasets.web.weight" not in visible
    assert "&lt;b&gt;exp3" in visible
    assert "<b>" not in visible


@pytest.mark.parametrize("legs", [[(0, 1, 1)], [(0, 40, 2), (20, 60, 4)]])
def test_runs_on_an_object_store_and_runs_under_way_have_a_page(legs: list[tuple[int, int, int]]) -> None:
    rundir = write_run(f"memory://report-{time.time_ns()}/far", legs, changed=30)
    visible = page([read_run(rundir, state="TRAINING")])
    assert f"{legs[-1][1]} of {legs[-1][1]}" in visible
    assert ("first different step: 30" in visible) == (len(legs) > 1)


def test_a_run_without_a_step_has_a_page_without_a_chart(tmp_path: Path) -> None:
    rundir = write_run(str(tmp_path / "begun"), [(0, 0, 1), (0, 1, 1)])
    for name in ("metrics.jsonl", "ledger.jsonl", "contract.json", "calibration.json"):
        (tmp_path / "begun" / name).unlink()
    (tmp_path / "begun" / "events.jsonl").write_text("")
    text = page([read_run(rundir)])
    assert "There is no ledger yet" in text
    assert json.loads(re.search(r'id="numbers">(.*?)</script>', text)[1])["charts"] == []  # type: ignore[index]


def test_the_verb_and_the_stage_write_the_page(run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", run.url]) == 0
    assert capsys.readouterr().out.strip() == run.path("report.html")
    assert "<title>exp1" in Path(run.path("report.html")).read_text("utf-8")
    out = tmp_path / "two" / "page.html"
    assert main(["report", run.url, run.url, "--out", str(out)]) == 0
    assert out.stat().st_size > 1_000_000
    spec = newest_spec(run)
    spec = dataclasses.replace(spec, stages=dataclasses.replace(spec.stages, order=("train", "report")))
    (stage,) = (stage for stage in stages_of(spec) if stage.name == "report")
    assert run_stage(run, 3, stage, spec) == 0
    assert run.read_json("stages", "report.json")["result"] == {"steps": 300, "file": "report.html"}


def test_a_missing_library_is_named_with_the_line_to_type(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ConfigError) as caught:
        report(run, newest_spec(run))
    assert "pip install 'zephon-elastic[report]'" in caught.value.remedy
