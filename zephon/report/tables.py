"""The tables of the page, as headings and rows of text; the page escapes and draws them."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence

from zephon.report.history import compared
from zephon.report.marks import step_at
from zephon.report.run import RunRecord
from zephon.run.events import Event
from zephon.run.state import PARTS, Resized

MINOR = ("node_hello", "node_ready", "node_started", "node_exited", "node_gone", "node_leaving", "supervisor_started")
MOST_EVENTS = 3_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """Headings and rows.

    Args:
        numbers: headings whose column is aligned to the right.
        note: a sentence below it.
        good: whether the note is good news; None where it is no verdict.
        minor: rows that are shown only when asked for, by their place.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[str] = ()
    note: str = ""
    good: bool | None = None
    minor: frozenset[int] = frozenset()


def overview(run: RunRecord) -> list[tuple[str, str]]:
    """What the head of the page says of a run, by heading."""
    newest = run.environments[max(run.environments)] if run.environments else None
    packages = dict(newest.packages) if newest else {}
    versions = [f"Python {newest.python}"] if newest else []
    versions += [f"{name} {packages[name]}" for name in ("zephon-elastic", "torch") if name in packages]
    if newest is not None and newest.git:
        versions.append(f"commit {newest.git['commit'][:10]}{' with changes' if newest.git.get('dirty') else ''}")
    begun = min((environment.time for environment in run.environments.values()), default=None)
    return [
        ("State", run.state),
        ("Steps", f"{run.steps:,} of {run.spec.trainer.steps:,}"),
        ("Tokens", f"{run.tokens:,}"),
        ("Wall time", f"{duration(run.wall_s)}, of which steps {duration(run.trained_s)}"),
        ("Ranks", _sizes(run.sizes)),
        ("Attempts", str(max(run.environments, default=0) or len({leg.attempt for leg in run.history.legs}))),
        ("Begun", "–" if begun is None else moment(begun)),
        ("Spec", run.spec.sha256()[:16]),
        ("Versions", ", ".join(versions) or "not recorded"),
        ("Machine", f"{newest.platform}, {newest.cpus} cores" if newest else "not recorded"),
    ]


def runs(records: Sequence[RunRecord]) -> Table:
    """Several runs, a row each."""
    rows = [[run.name, *(value for _, value in overview(run))] for run in records]
    return Table(title="Runs", headings=["Run", *(name for name, _ in overview(records[0]))], rows=rows)


def datasets(run: RunRecord) -> Table:
    """Target and realized share, tokens, passes and loss of each dataset."""
    total = sum(dataset.tokens for dataset in run.datasets) or 1
    named: dict[str, int] = {}
    for drop in run.drops:
        for name, count in drop.named.items():
            named[name] = named.get(name, 0) + count
    rows = [
        [
            dataset.name,
            f"{dataset.target:.2%}",
            f"{dataset.tokens / total:.2%}" if dataset.tokens else "–",
            f"{dataset.tokens:,}",
            "–" if dataset.passes is None else f"{dataset.passes:.3g}",
            "–" if dataset.loss is None else f"{dataset.loss:.4f}",
            str(named.get(dataset.name, 0)),
        ]
        for dataset in run.datasets
    ]
    headings = ["Dataset", "Target", "Realized", "Tokens", "Passes", "Loss", "Dropped"]
    note = "Loss: mean over the tokens of the last 100 steps. Passes: tokens by the tokens in the whole dataset, as its sample "
    note += "has them. Dropped: documents that are named below."
    return Table(title="Datasets", headings=headings, rows=rows, numbers=headings[1:], note=note)


def dropped(run: RunRecord) -> Table:
    """What was dropped or quarantined, with the addresses of the first documents."""
    rows = []
    for drop in run.drops:
        places = [f"{dataset}, {shard}, row {row:,}" for dataset, shard, row in drop.addresses]
        more = (
            f"\nand {drop.count - len(places):,} more: the ledger names the first 8 of each step"
            if drop.count > len(places)
            else ""
        )
        rows.append([drop.reason, f"{drop.count:,}", "\n".join(places) + more])
    note = "" if rows else "No document was dropped or quarantined."
    headings = ["Reason", "Documents", "Dataset, shard, row (in JSONL: byte)"]
    return Table(title="Dropped and quarantined documents", headings=headings, rows=rows, numbers=["Documents"], note=note)


def legs(run: RunRecord) -> Table:
    """Which memberships trained which steps, and whether those that have steps in common agree."""
    rows = []
    for leg in run.history.legs:
        result = "nothing to compare" if not leg.repeated else "equal"
        if leg.differs is not None:
            result = f"first different step: {leg.differs}"
        steps = f"{leg.first:,} to {leg.last:,}"
        rows.append([str(leg.attempt), str(leg.generation), str(leg.world_size), steps, f"{leg.repeated:,}", result])
    headings = ["Attempt", "Generation", "Ranks", "Steps", "Trained before", "Digests"]
    good = None if not run.history.repeated and run.history.differs is None else run.history.differs is None
    return Table(
        title="Digests",
        headings=headings,
        rows=rows,
        numbers=["Ranks", "Trained before"],
        note=run.history.verdict(),
        good=good,
    )


def comparison(records: Sequence[RunRecord]) -> Table:
    """The first run's digests against those of each other run."""
    first, *others = records
    rows = [[first.name, other.name, compared(first.history, other.history)] for other in others]
    good = all(result.startswith("Equal") for *_, result in rows)
    return Table(title="Digests of the runs", headings=["Run", "Other", "Result"], rows=rows, good=good)


def resizes(run: RunRecord) -> Table:
    """Changes of size and the parts of their stalls."""
    rows = []
    for event in run.events:
        if event.kind == "resized":
            resized = Resized.from_json(event.details)
            parts = [f"{resized.parts_s.get(part, 0.0):.2f}" for part in PARTS]
            nodes = f"{resized.nodes_before} → {resized.nodes}"
            stall = [f"{resized.stall_s:.2f}", *parts, str(resized.lost_steps)]
            rows.append([moment(event.time), f"{resized.step_before:,}", nodes, resized.reason, *stall])
    parts = [part.replace("_", " ").capitalize() for part in PARTS]
    headings = ["Time", "Step", "Nodes", "Reason", "Stall, s", *parts, "Steps lost"]
    note = "" if rows else "The run's size never changed while it ran."
    return Table(title="Resizes", headings=headings, rows=rows, numbers=["Step", "Stall, s", *parts, "Steps lost"], note=note)


def events(run: RunRecord) -> Table:
    """All events by time; those of single nodes are shown when asked for."""
    listed = list(run.events)[-MOST_EVENTS:]
    rows = [
        [
            moment(event.time),
            f"{step_at(run.curves, event.time):,}",
            str(event.attempt),
            event.kind.replace("_", " "),
            _details(event),
        ]
        for event in listed
    ]
    minor = frozenset(place for place, event in enumerate(listed) if event.kind in MINOR)
    note = f"The last {MOST_EVENTS:,} of {len(run.events):,} events." if len(run.events) > MOST_EVENTS else ""
    headings = ["Time", "Step", "Attempt", "Event", "Details"]
    return Table(title="Events", headings=headings, rows=rows, numbers=["Step"], minor=minor, note=note)


def evaluation(run: RunRecord) -> Table:
    """Held-out loss of the last checkpoint that was evaluated, and every task's accuracy."""
    rows = []
    if run.evaluation is not None:
        held, count = run.evaluation, f"{run.evaluation.tokens:,} tokens"
        rows.append(["all held-out text", str(held.step), count, f"loss {held.loss:.4f}", "", ""])
        rows += [[name, str(held.step), "", f"loss {loss:.4f}", "", ""] for name, loss in held.by_dataset.items()]
    rows += [
        [
            task.task,
            str(task.step),
            f"{task.items:,} items",
            f"{task.accuracy:.2%}",
            f"{task.baseline:.2%}",
            f"{task.centred:.4f}",
        ]
        for task in run.tasks
    ]
    note = "" if rows else "Neither the stage evaluate nor zephon evaluate has been run."
    headings = ["Set or task", "Step", "Of", "Result", "Guessing", "Centred accuracy"]
    return Table(title="Evaluation", headings=headings, rows=rows, numbers=headings[1:], note=note)


def checkpoints(run: RunRecord) -> Table:
    """Each checkpoint with its size."""
    rows = [
        [
            f"{saved.step:,}",
            "incomplete" if saved.size is None else size_text(saved.size),
            "–" if saved.world_size is None else str(saved.world_size),
            "–" if saved.time is None else moment(saved.time),
        ]
        for saved in run.checkpoints
    ]
    total = sum(saved.size or 0 for saved in run.checkpoints)
    note = f"{size_text(total)} together." if rows else "There is no checkpoint."
    headings = ["Step", "Size", "Saved by ranks", "Completed"]
    return Table(title="Checkpoints", headings=headings, rows=rows, numbers=headings[:3], note=note)


def settings(run: RunRecord) -> Table:
    """Every field with the source of its value; defaults are shown when asked for."""
    rows = [[name, setting.value, setting.source] for name, setting in run.settings.items()]
    minor = frozenset(place for place, (_, _, source) in enumerate(rows) if source == "default")
    return Table(title="Configuration", headings=["Field", "Value", "Source"], rows=rows, minor=minor)


def differences(records: Sequence[RunRecord]) -> Table:
    """Fields in which several runs differ, each value with its source."""
    names = dict.fromkeys(name for run in records for name in run.settings)
    rows = []
    for name in names:
        held = [run.settings.get(name) for run in records]
        if len({setting and setting.value for setting in held}) > 1:
            rows.append([name, *(f"{setting.value}  ({setting.source})" if setting else "–" for setting in held)])
    note = "" if rows else "The runs have the same configuration."
    return Table(title="Configuration: what differs", headings=["Field", *(run.name for run in records)], rows=rows, note=note)


def _details(event: Event) -> str:
    if event.kind == "resized":
        try:
            return Resized.from_json(event.details).sentence
        except KeyError:  # of another version
            pass
    shown = (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in event.details.values())
    return ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in zip(event.details, shown, strict=True))[:600]


def _sizes(sizes: Sequence[int]) -> str:
    if len(sizes) > 12:
        return f"{' → '.join(map(str, sizes[:5]))} → … → {' → '.join(map(str, sizes[-5:]))} ({len(sizes)} stretches)"
    return " → ".join(map(str, sizes)) or "–"


def moment(seconds: float) -> str:
    """Unix seconds as a date and time in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def duration(seconds: float | None) -> str:
    """``42.0 s``, ``3 min 05 s`` or ``2 h 10 min``."""
    if seconds is None:
        return "–"
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    return f"{whole // 60} min {whole % 60:02d} s" if whole < 3600 else f"{whole // 3600:,} h {whole % 3600 // 60:02d} min"


def size_text(count: int) -> str:
    """Bytes with a unit."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"
