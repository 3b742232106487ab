"""The page of one or several runs: one HTML file that needs nothing beside it.

    page.html   the structure (Jinja)        page.css   how it looks: light, dark, narrow, on paper
    page.js     charts, the switch between steps and tokens, the switch between light and dark

The plotting library's script is written into the file once. A content security policy forbids the page every request.
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import json
import time
from collections.abc import Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined

from zephon.errors import not_installed
from zephon.report import tables
from zephon.report.charts import Painter
from zephon.report.run import RunRecord


def page(records: Sequence[RunRecord]) -> str:
    """The HTML text for one run, or for several beside each other.

    Raises:
        ConfigError: the plotting library is not installed.
    """
    first, several = records[0], len(records) > 1
    charts = [chart.to_json() for chart in Painter(records).charts()]
    data = json.dumps({"charts": charts, "several": several}, allow_nan=False, separators=(",", ":"))
    environment = Environment(loader=PackageLoader("zephon.report", "page"), autoescape=True, undefined=StrictUndefined)
    return environment.get_template("page.html").render(
        title=" and ".join(run.name for run in records) if len(records) < 3 else f"{first.name} and {len(records) - 1} more",
        records=records,
        several=several,
        overview=tables.overview(first),
        state=first.state.partition(":")[0],
        overview_table=tables.runs(records) if several else None,
        sections=[dataclasses.asdict(section) for section in _sections(records)],
        charts={chart["id"]: chart for chart in charts},
        made=tables.moment(time.time()),
        data=data.replace("<", "\\u003c"),  # no text in it can end its script element
        css=_file("page.css"),
        script=_file("page.js"),
        library=_library(),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page: charts by the beginning of their id, and tables."""

    id: str
    title: str
    charts: Sequence[str] = ()
    tables: Sequence[tables.Table] = ()


def _sections(records: Sequence[RunRecord]) -> list[Section]:
    def named(table: tables.Table, run: RunRecord) -> tables.Table:
        return dataclasses.replace(table, title=f"{table.title}: {run.name}") if len(records) > 1 else table

    several = len(records) > 1
    data = [named(make(run), run) for run in records for make in (tables.datasets, tables.dropped)]
    proof = [*([tables.comparison(records)] if several else []), *(named(tables.legs(run), run) for run in records)]
    happened = [named(make(run), run) for run in records for make in (tables.resizes, tables.events)]
    saved = [named(make(run), run) for run in records for make in (tables.evaluation, tables.checkpoints)]
    settings = [tables.differences(records)] if several else [tables.settings(records[0])]
    return [
        Section(id="loss", title="Loss", charts=("loss",)),
        Section(id="speed", title="Optimizer and speed", charts=("lr", "norm", "speed", "waiting", "phases")),
        Section(id="data", title="Data", charts=("dataset-loss", "shares", "padding", "segments"), tables=data),
        Section(id="proof", title="Proof", tables=proof),
        Section(id="events", title="What happened", tables=happened),
        Section(id="checkpoints", title="Checkpoints", tables=saved),
        Section(id="configuration", title="Configuration", tables=settings),
    ]


def _library() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise not_installed("zephon report", "plotly", "report") from error
    return str(get_plotlyjs())


def _file(name: str) -> str:
    return importlib.resources.files("zephon.report.page").joinpath(name).read_text("utf-8")
