"""The curves of one or several runs as charts for the page: traces of the plotting library, with few points.

A chart is plain data. Each trace has its places twice, by step and by token, since the page can show either; numbers are arrays
in base64, which the library reads itself.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from zephon.fastjson import Json
from zephon.report.curves import Curves, Floats, extremes, means
from zephon.report.marks import Mark, marks
from zephon.report.run import RunRecord, targets
from zephon.types import IntArray

BUDGET = 120_000  # points on the page
POINTS = (200, 2_000)  # of one curve, at least and at most
PERCENT = ".2~%"
MEANS = 250  # points of the mean that is drawn over a curve of more steps
PHASES = ("data", "agree", "forward", "backward", "gradients", "optimizer", "evaluate", "record", "save", "other")
COLOURS = ("#3b82c4", "#e07b39", "#3f9d63", "#c9558f", "#8a6fd1", "#b8922e", "#2aa5a5", "#d05a5a", "#7d8793", "#6b9a2f")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """One chart: ``unit`` is the title of its vertical axis, ``format`` how d3 writes its numbers, ``note`` a line below it."""

    id: str
    title: str
    unit: str
    traces: Sequence[Json]
    note: str = ""
    logarithmic: bool = False
    format: str = ".4~g"
    wide: bool = False

    def to_json(self) -> Json:
        return dataclasses.asdict(self)


class Painter:
    """Makes the charts of some runs.

    Args:
        runs: one run is coloured by its sizes; of several each has its colour.
    """

    def __init__(self, runs: Sequence[RunRecord]) -> None:
        self._runs = runs
        curves = 7 * len(runs) + sum(3 * len(run.datasets) + len(PHASES) for run in runs)
        self._points = min(max(BUDGET // max(curves, 1), POINTS[0]), POINTS[1])
        sizes = sorted({size for run in runs for size in run.sizes})
        self._size_colour = {size: COLOURS[i % len(COLOURS)] for i, size in enumerate(sizes)}
        self._run_colour = {run.url: COLOURS[i % len(COLOURS)] for i, run in enumerate(runs)}
        self._marks = {run.url: marks(run.curves, run.events) for run in runs}

    def charts(self) -> list[Chart]:
        """All charts that have something to show."""
        drawn = [
            self._loss(),
            self._chart("lr", "Learning rate", "", "lr"),
            self._chart("norm", "Gradient norm before clipping", "", "grad_norm", logarithmic=True),
            self._chart("speed", "Speed", "tokens/s", "tokens_per_s", format="~s"),
            *self._phases(),
            self._waiting(),
            *self._shares(),
            *self._dataset_losses(),
            self._padding(),
            self._segments(),
        ]
        return [chart for chart in drawn if any(trace.get("y") for trace in chart.traces)]

    def _loss(self) -> Chart:
        traces = []
        for run in self._runs:
            traces += self._by_size(run, "loss", "training loss")
            held = run.curves.column("eval_loss")
            if (rows := np.flatnonzero(np.isfinite(held))).size:
                colour = self._run_colour[run.url] if len(self._runs) > 1 else "text"
                style: Json = {"mode": "lines+markers", "marker": {"size": 7}}
                style["line"] = {"color": colour, "width": 1.5, "dash": "dot"}
                traces.append(self._trace(run.curves, rows, held, self._named(run, "held-out loss"), **style))
            for name, values in run.curves.group("eval_losses").items():
                if (rows := np.flatnonzero(np.isfinite(values))).size and len(run.curves.group("eval_losses")) > 1:
                    style = {"mode": "lines+markers", "line": {"width": 1, "dash": "dot"}, "marker": {"size": 5}}
                    traces.append(self._trace(run.curves, rows, values, self._named(run, f"held-out {name}"), **style))
        colours = "a colour for each number of ranks" if len(self._runs) == 1 else "a colour for each run"
        note = f"Mean cross entropy per trained token; {colours}. Marks say what happened there."
        return Chart(
            id="loss", title="Loss", unit="nats per token", traces=self._marked(traces, legend=True), note=note, wide=True
        )

    def _chart(self, id: str, title: str, unit: str, column: str, *, logarithmic: bool = False, format: str = ".4~g") -> Chart:
        traces = [trace for run in self._runs for trace in self._by_size(run, column, title.lower())]
        return Chart(id=id, title=title, unit=unit, traces=self._marked(traces), logarithmic=logarithmic, format=format)

    def _phases(self) -> Iterator[Chart]:
        """Stacked seconds a step, of each run alone; means, since sums of extremes would be no step's."""
        for number, run in enumerate(self._runs):
            seconds = run.curves.group("seconds")
            step = seconds.pop("step", None)
            if step is None or not len(run.curves):
                continue
            measured = [np.nan_to_num(seconds[name]) for name in PHASES if name in seconds]
            seconds["other"] = np.maximum(step - sum(measured, np.zeros(len(step))), 0.0)
            count = min(len(run.curves), 300)
            edges = np.linspace(0, len(run.curves), count + 1).astype(np.int64)
            traces = []
            for place, name in enumerate(phase for phase in PHASES if phase in seconds):
                averaged = means(np.nan_to_num(seconds[name]), edges)
                style: Json = {
                    "stackgroup": "phases",
                    "mode": "lines",
                    "line": {"width": 0, "color": COLOURS[place % len(COLOURS)]},
                }
                traces.append(self._trace(run.curves, edges[1:] - 1, averaged, name, gathered=True, **style))
            title = "Time by phase" + (f": {run.name}" if len(self._runs) > 1 else "")
            note = "Seconds of a step, as the mean of some steps. What is not one of the phases is other."
            yield Chart(id=f"phases-{number}", title=title, unit="s", traces=traces, note=note, wide=True)

    def _waiting(self) -> Chart:
        traces = []
        for run in self._runs:
            share = _ratio(run.curves.column("seconds.data"), run.curves.column("seconds.step"))
            traces += self._by_size(run, share, "waiting for data")
        note = "Share of each step's time in which the trainer waited for the loader."
        return Chart(
            id="waiting", title="Waiting for data", unit="of the step", traces=self._marked(traces), format=PERCENT, note=note
        )

    def _shares(self) -> Iterator[Chart]:
        for number, run in enumerate(self._runs):
            wanted, tokens = targets(run.spec), np.nan_to_num(run.curves.column("tokens"))
            traces = []
            for place, (name, shares) in enumerate(sorted(run.curves.group("shares").items())):
                colour = COLOURS[place % len(COLOURS)]
                line = {"color": colour, "width": 1.5}
                total = np.cumsum(np.nan_to_num(shares) * tokens) / np.maximum(np.cumsum(tokens), 1.0)
                share = run.curves.group("realized").get(name, total)  # older runs have the shares of single steps alone
                traces.append(self._trace(run.curves, extremes(share, self._points), share, name, line=line))
                goal = np.full(len(run.curves), wanted.get(name, np.nan))
                if phased := run.curves.group("targets"):  # a dataset that rests is not named
                    goal = np.nan_to_num(phased.get(name, np.zeros(len(run.curves))))
                ends = extremes(goal, self._points // 2)
                dashed = {**line, "dash": "dash", "width": 1}
                traces.append(self._trace(run.curves, ends, goal, f"{name}, target", line=dashed))
            title = "Shares of the datasets" + (f": {run.name}" if len(self._runs) > 1 else "")
            note = "Share of the tokens of the newest thousand steps; dashed: the mixture's target over them."
            yield Chart(id=f"shares-{number}", title=title, unit="of the tokens", traces=traces, format=PERCENT, note=note)

    def _dataset_losses(self) -> Iterator[Chart]:
        for number, run in enumerate(self._runs):
            traces = []
            for place, (name, losses) in enumerate(sorted(run.curves.group("dataset_loss").items())):
                line = {"color": COLOURS[place % len(COLOURS)], "width": 1.2}
                traces.append(self._trace(run.curves, extremes(losses, self._points), losses, name, line=line))
            title = "Loss of each dataset" + (f": {run.name}" if len(self._runs) > 1 else "")
            yield Chart(id=f"dataset-loss-{number}", title=title, unit="nats per token", traces=traces)

    def _padding(self) -> Chart:
        traces = []
        for run in self._runs:
            padding, rows = run.curves.column("packed.padding"), run.curves.column("packed.rows")
            length = run.spec.pipeline.context_length + 1
            traces += self._by_size(run, _ratio(padding, rows * length), "padding")
        note = "Share of the rows' places that hold no token."
        return Chart(
            id="padding", title="Padding", unit="of the places", traces=self._marked(traces), format=PERCENT, note=note
        )

    def _segments(self) -> Chart:
        traces = []
        for run in self._runs:
            filled = _ratio(run.curves.column("packed.segments"), run.curves.column("packed.rows"))
            traces += self._by_size(run, filled, "documents a row")
        note = "Documents, or pieces of documents, in a packed row."
        return Chart(id="segments", title="Documents in a row", unit="a row", traces=self._marked(traces), note=note)

    def _by_size(self, run: RunRecord, column: str | Floats, label: str) -> list[Json]:
        """One run's curve in stretches of one size; several runs' curves in the colour of each."""
        values = run.curves.column(column) if isinstance(column, str) else column
        if not np.isfinite(values).any():
            return []
        rows = extremes(values, self._points)
        many = len(values) > 2 * MEANS
        if len(self._runs) > 1:
            colour, name = self._run_colour[run.url], self._named(run, "")
            return self._with_mean(run.curves, rows, values, name, run.url, colour, (0, len(values)) if many else None)
        traces, shown = [], set[int]()
        for first, last, size in run.curves.stretches("world_size"):
            inside = rows[(rows >= max(first - 1, 0)) & (rows < last)]  # from the last step before, so that the curve is whole
            colour, name = self._size_colour.get(size, COLOURS[0]), f"{size} rank{'s' * (size != 1)}"
            for trace in self._with_mean(run.curves, inside, values, name, str(size), colour, (first, last) if many else None):
                hover = f"%{{y:.5~g}} ({label}, {name})<extra></extra>"
                traces.append({**trace, "showlegend": trace["showlegend"] and size not in shown, "hovertemplate": hover})
            shown.add(size)
        return traces

    def _with_mean(
        self,
        curves: Curves,
        rows: IntArray,
        values: Floats,
        name: str,
        group: str,
        colour: str,
        within: tuple[int, int] | None,
    ) -> list[Json]:
        """A curve; where it has many steps, faint below its means between the rows ``within``."""
        if within is None:
            return [self._trace(curves, rows, values, name, group=group, line={"color": colour, "width": 1.5}, showlegend=True)]
        first, last = within
        count = max(1, min(MEANS * (last - first) // len(values), last - first))
        edges = np.linspace(first, last, count + 1).astype(np.int64)
        faint = self._trace(curves, rows, values, name, group=group, line={"color": colour, "width": 1}, opacity=0.35)
        averaged, line = means(values[: edges[-1]], edges), {"color": colour, "width": 1.8}
        mean = self._trace(curves, edges[1:] - 1, averaged, name, group=group, gathered=True, line=line, showlegend=True)
        return [{**faint, "showlegend": False}, mean]

    def _named(self, run: RunRecord, label: str) -> str:
        return label if len(self._runs) == 1 else f"{run.name} {label}".strip()

    def _trace(
        self,
        curves: Curves,
        rows: IntArray,
        values: Floats,
        name: str,
        *,
        group: str = "",
        gathered: bool = False,
        **style: object,
    ) -> Json:
        """One trace; ``gathered`` values belong to the rows already."""
        shown = values if gathered else values[rows]
        return {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "legendgroup": group or name,
            "step": packed(curves.step[rows], "i4"),
            "token": packed(curves.column("total_tokens")[rows], "f8"),
            "y": packed(np.where(np.isfinite(shown), shown, np.nan), "f4"),
            **style,
        }

    def _marked(self, traces: list[Json], *, legend: bool = False) -> list[Json]:
        """With the marks of all runs along the top, and a thin line below each."""
        marked = [{**trace, "showlegend": legend} for run in self._runs for trace in self._mark_traces(run)]
        return [*traces, *marked] if traces else []

    def _mark_traces(self, run: RunRecord) -> Iterator[Json]:
        by_kind: dict[str, list[Mark]] = {}
        for mark in self._marks[run.url]:
            by_kind.setdefault(mark.kind, []).append(mark)
        symbols = {"resize": "diamond", "restart": "triangle-down", "failure": "x", "skipped step": "square"}
        tokens = run.curves.column("total_tokens")
        for kind, same in by_kind.items():
            steps = np.array([mark.step for mark in same], np.int64)
            rows = np.clip(np.searchsorted(run.curves.step, steps), 0, max(len(tokens) - 1, 0))
            yield {
                "type": "scatter",
                "mode": "markers",
                "name": self._named(run, kind),
                "legendgroup": f"{run.url} {kind}",
                "mark": True,
                "step": packed(steps, "i4"),
                "token": packed(np.where(steps > 0, tokens[rows], 0.0) if len(tokens) else steps, "f8"),
                "y": packed(np.ones(len(steps)), "f4"),
                "text": [mark.text for mark in same],
                "marker": {"symbol": symbols[kind], "size": 9, "color": "#d05a5a" if kind == "failure" else "text"},
                "hovertemplate": "%{text}<extra></extra>",
            }


def packed(values: Floats | IntArray, kind: str) -> Json:
    """An array as the plotting library reads it from JSON: ``i4``, ``f4`` or ``f8``, little-endian, in base64."""
    data = np.ascontiguousarray(values, dtype=f"<{kind}").tobytes()
    return {"dtype": kind, "bdata": base64.b64encode(data).decode("ascii")}


def _ratio(part: Floats, whole: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio: Floats = np.where(whole > 0, part / whole, np.nan)
    return ratio
