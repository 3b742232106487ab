"""The page in a real browser: charts are drawn, nothing is complained of, and no request leaves the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.report.browser import Browser, Page, chromium
from tests.report.written import write_run
from zephon.report.page import page
from zephon.report.run import read_run

pytest.importorskip("plotly")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium() is None, reason="no Chromium on this machine: apt-get install chromium"),
]
STEPS = 100_000
LOAD_S = 2.0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run of 100,000 steps."""
    folder = tmp_path_factory.mktemp("page")
    run = write_run(str(folder / "long"), [(0, 40_000, 4), (39_950, 70_000, 2), (70_000, STEPS, 8)], bad=55_555, digests=False)
    out = folder / "report.html"
    out.write_text(page([read_run(run, state="DONE")]), "utf-8")
    return out


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def drawn(browser: Browser, path: Path, **options: int | bool) -> Page:
    """The page with all of its charts."""
    opened = browser.open(path, **options)  # type: ignore[arg-type]
    opened.wait_for("document.documentElement?.dataset.ready")
    return opened


@pytest.mark.parametrize("options", [{}, {"width": 400, "dark": True}], ids=["light", "dark on a phone"])
def test_charts_are_drawn_without_a_complaint_or_a_request(
    browser: Browser, made: Path, options: dict[str, int | bool]
) -> None:
    opened = drawn(browser, made, **options)
    charts = opened.evaluate("document.querySelectorAll('.plot').length")
    assert charts == 10
    for place in range(charts):
        opened.evaluate(f"document.querySelectorAll('.plot')[{place}].scrollIntoView({{behavior: 'instant'}})")
        opened.wait_for(f"!!document.querySelectorAll('.plot')[{place}].querySelector('path.js-line')")
    assert (
        opened.evaluate("[...document.querySelectorAll('.plot')].filter(p => p.querySelector('path.js-line')).length") == charts
    )
    assert opened.evaluate("document.documentElement.scrollWidth") <= options.get("width", 1280)
    opened.evaluate("document.querySelector('[data-axis=token]').click()")
    assert opened.evaluate("document.getElementById('chart-loss').layout.xaxis.title.text") == "trained tokens"
    opened.evaluate("document.getElementById('theme').click()")
    assert opened.errors == []
    assert opened.requests == [made.as_uri()]


def test_a_hundred_thousand_steps_load_in_two_seconds_and_keep_a_single_bad_one(browser: Browser, made: Path) -> None:
    assert made.stat().st_size < 8_000_000
    opened = browser.open(made)
    opened.call("Performance.enable", timeDomain="threadTicks")
    opened.wait_for("document.documentElement?.dataset.ready")
    metrics = {metric["name"]: metric["value"] for metric in opened.call("Performance.getMetrics")["metrics"]}
    assert metrics["TaskDuration"] < LOAD_S, "processor time of the page's thread, so that a busy machine does not count"
    highest = "Math.max(...document.getElementById('chart-loss').calcdata.flat().map(p => p.y || 0))"
    assert opened.evaluate(highest) > 10


def test_paper_has_light_colours_and_all_charts(browser: Browser, made: Path, tmp_path: Path) -> None:
    opened = drawn(browser, made, dark=True)
    opened.pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    assert opened.errors == []
