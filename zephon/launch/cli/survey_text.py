"""What ``data check`` prints of a survey."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from zephon.pipeline.survey import Survey
from zephon.pipeline.survey.summary import Lengths

_WIDTH = 40  # of a plot's longest bar


def print_survey(survey: Survey, console: Console) -> None:
    """Tables of datasets and lengths, plots of the lengths, what is repeated, what is broken."""
    console.print(_datasets(survey))
    console.print(_lengths(survey))
    for name, summary in survey.summaries.items():
        if summary.tokens.number:
            _plot(f"tokens of a document of {name}", summary.tokens, console)
        else:
            _plot(f"characters of a document of {name}", summary.characters, console)
    for names, count in survey.shared.items():
        console.print(f"{count:,} texts are in {names[0]} and in {names[1]}", highlight=False)
    for first, again in survey.examples:
        console.print(f"  the same text: {first} and {again}", highlight=False)
    if survey.overlap is not None:
        _print_overlap(survey, console)
    for summary in survey.summaries.values():
        for kind, address, what in summary.troubles:
            console.print(f"{kind}: {address}: {what}", highlight=False)
        for size, address in summary.largest[:1]:
            console.print(f"largest: {address}: {size:,} characters", highlight=False)
    console.print(
        "quantiles are right to a fifth (histograms); duplicates are exact, by 64 bits of a hash", style="dim", highlight=False
    )


def _datasets(survey: Survey) -> Table:
    table = Table(box=None, padding=(0, 2))
    titles = ("dataset", "documents", "bytes", "malformed", "no text", "empty", "repeated", "compressed", "scripts")
    for title in titles:
        table.add_column(title, justify="left" if title in ("dataset", "scripts") else "right")
    for name, summary in survey.summaries.items():
        scripts = ", ".join(f"{script} {share:.0%}" for script, share in list(summary.scripts().items())[:3])
        numbers = (summary.documents, summary.text_bytes, summary.bad, summary.without, summary.empty)
        shown = [f"{number:,}" for number in (*numbers, survey.repeats.get(name, 0))]
        table.add_row(name, *shown, f"{summary.ratio:.1f} : 1", scripts)
    return table


def _lengths(survey: Survey) -> Table:
    table = Table(box=None, padding=(0, 2))
    for title in ("dataset", "a document's", "mean", "10%", "median", "90%", "99%", "greatest", "all"):
        table.add_column(title, justify="left" if title in ("dataset", "a document's") else "right")
    for name, summary in survey.summaries.items():
        for what, lengths in (("characters", summary.characters), ("tokens", summary.tokens)):
            if lengths.number:
                quantiles = [f"{lengths.quantile(part):,}" for part in (0.1, 0.5, 0.9, 0.99)]
                mean = f"{lengths.sum / lengths.number:,.0f}"
                table.add_row(name, what, mean, *quantiles, f"{lengths.greatest:,}", f"{lengths.sum:,}")
    return table


def _plot(title: str, lengths: Lengths, console: Console) -> None:
    rows = lengths.doublings()
    most = max((count for _, count in rows), default=1)
    console.print(f"\n{title}", style="bold", highlight=False)
    for start, count in rows:
        console.print(f"{start:>12,}+  {'█' * max(1, round(_WIDTH * count / most)):<{_WIDTH}}  {count:,}", highlight=False)


def _print_overlap(survey: Survey, console: Console) -> None:
    assert survey.overlap is not None
    known, part, met = survey.overlap
    sample = "" if part == 1 else f" (a sample of {part:.2%} of them)"
    share = met / known if known else 0.0
    console.print(
        f"\nheld-out text: {met:,} of {known:,} runs of 13 words{sample} are in training text: {share:.2%}", highlight=False
    )
    for name, summary in survey.summaries.items():
        if summary.overlap:
            console.print(f"{summary.overlap:,} documents of {name} have some of them", highlight=False)
            for line in summary.overlapping:
                console.print(f"  {line}", highlight=False)
