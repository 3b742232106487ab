"""Everything that a page says of one run, read from its directory: finished or under way, on a disk or on an object store."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from zephon.report.curves import Curves, Floats
from zephon.report.history import Drop, History, history
from zephon.run import checkpoints, ledger, metrics
from zephon.run.calibration import read_calibration
from zephon.run.contract_file import Contract, has_contract, read_contract
from zephon.run.data_end import read_data_end
from zephon.run.directory import RunDir
from zephon.run.environment import Environment, read_environment
from zephon.run.evaluation import HeldOutLoss, TaskScore, read_evaluation, read_tasks
from zephon.run.events import Event, read_events
from zephon.run.finished import missing_at_end
from zephon.run.specs import newest_spec
from zephon.spec.experiment import RunSpec

_RECENT = 100  # steps, for the loss that a table shows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """One field of the experiment: its value as text, and where that came from."""

    value: str
    source: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """One dataset of a run.

    Args:
        target: its share of the tokens as the mixture has it.
        tokens: tokens of it that were trained on, padding excluded.
        passes: how often that is its whole content; None where its size or tokens per byte are not recorded.
        loss: mean over its tokens of the last hundred steps; None before there is one.
    """

    name: str
    target: float
    tokens: int
    passes: float | None
    loss: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One checkpoint. ``size`` in bytes and ``time`` in unix seconds; both None where its save has not ended."""

    step: int
    world_size: int | None
    size: int | None
    time: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run at one moment.

    Args:
        state: as the launcher knows it, or what follows from the files.
        environments: by attempt, where there are some.
        settings: every field of the newest attempt's experiment by dotted name.
    """

    url: str
    name: str
    state: str
    spec: RunSpec
    environments: Mapping[int, Environment]
    curves: Curves
    history: History
    datasets: Sequence[Dataset]
    drops: Sequence[Drop]
    events: Sequence[Event]
    checkpoints: Sequence[Checkpoint]
    settings: Mapping[str, Setting]
    evaluation: HeldOutLoss | None
    tasks: Sequence[TaskScore]

    @property
    def steps(self) -> int:
        """Steps done."""
        return int(self.curves.step[-1]) if len(self.curves) else 0

    @property
    def tokens(self) -> int:
        """Trained tokens so far."""
        total = self.curves.column("total_tokens")
        return 0 if not len(total) or math.isnan(total[-1]) else int(total[-1])

    @property
    def sizes(self) -> list[int]:
        """The numbers of ranks that trained, in order; neighbours differ."""
        return [size for _, _, size in self.curves.stretches("world_size")]

    @property
    def wall_s(self) -> float | None:
        """Seconds from the first start to the newest sign of life."""
        begun = min((environment.time for environment in self.environments.values()), default=None)
        times = [event.time for event in self.events]
        written = self.curves.column("time")
        times += [float(written[-1])] if len(written) and math.isfinite(written[-1]) else []
        return max(times) - begun if times and begun is not None else None

    @property
    def trained_s(self) -> float:
        """Seconds of all steps together."""
        seconds = self.curves.column("seconds.step")
        return float(seconds[seconds == seconds].sum())


def read_run(rundir: RunDir, *, state: str = "") -> RunRecord:
    """Reads a run.

    Args:
        state: of its newest attempt, where the caller has asked the scheduler.

    Raises:
        ConfigError: no attempt of it has a spec that this version can read.
    """
    spec, attempts = newest_spec(rundir), rundir.attempts()
    environments = {n: e for n in attempts if (e := read_environment(rundir, n)) is not None}
    curves = Curves.of(metrics.lines(rundir))
    past = history(ledger.read_ledger(f"{rundir.url.rstrip('/')}/{ledger.FILE}") if ledger.has_ledger(rundir) else ())
    return RunRecord(
        url=rundir.url,
        name=rundir.root.rstrip("/").rpartition("/")[2],
        state=state or _state(rundir, spec),
        spec=spec,
        environments=environments,
        curves=curves,
        history=past,
        datasets=_datasets(rundir, spec, curves, past),
        drops=[*past.drops, *_dropped_at_end(rundir)],
        events=read_events(rundir),
        checkpoints=[_checkpoint(rundir, step) for step in checkpoints.steps_on_disk(rundir)],
        settings=_settings(spec, environments),
        evaluation=read_evaluation(rundir),
        tasks=read_tasks(rundir),
    )


def targets(spec: RunSpec) -> dict[str, float]:
    """Each dataset's share of the tokens, as the mixture has it."""
    weights = {name: dataset.weight for name, dataset in spec.data.datasets.items()}
    total = sum(weights.values()) or 1.0
    return {name: weight / total for name, weight in weights.items()}


def _state(rundir: RunDir, spec: RunSpec) -> str:
    missing = missing_at_end(rundir, spec.trainer.steps)
    return f"not done: {missing}" if missing else "DONE"


def _datasets(rundir: RunDir, spec: RunSpec, curves: Curves, past: History) -> list[Dataset]:
    contract = read_contract(rundir) if has_contract(rundir) else None
    tokens = _tokens_in(rundir, contract)
    losses, counts = curves.group("dataset_loss"), curves.group("dataset_tokens")
    rows = []
    for name, target in targets(spec).items():
        count = past.tokens.get(name, 0)
        rows.append(
            Dataset(
                name=name,
                target=target,
                tokens=count,
                passes=count / tokens[name] if tokens.get(name) else None,
                loss=_weighted(losses[name][-_RECENT:], counts[name][-_RECENT:]) if name in losses and name in counts else None,
            )
        )
    return rows


def _tokens_in(rundir: RunDir, contract: Contract | None) -> dict[str, float]:
    """Tokens in each dataset, by its size and the tokens per unit of its sample; empty where one of the two is not recorded."""
    counts = read_calibration(rundir) or {}
    files = contract.files if contract is not None and contract.files else {}
    return {
        name: files[name]["size"] * sample.tokens / sample.size
        for name, sample in counts.items()
        if name in files and sample.size
    }


def _weighted(values: Floats, weights: Floats) -> float | None:
    there = (values == values) & (weights > 0)
    return float((values[there] * weights[there]).sum() / weights[there].sum()) if there.any() else None


def _dropped_at_end(rundir: RunDir) -> list[Drop]:
    """What was dropped after the last step, which no ledger line has."""
    end = read_data_end(rundir)
    drops = []
    for reason, dropped in (end.dropped if end is not None else {}).items():
        drop = Drop(f"{reason}, after the last step")
        drop.add(int(dropped["count"]), dropped.get("first") or [])
        drops.append(drop)
    return drops


def _checkpoint(rundir: RunDir, step: int) -> Checkpoint:
    marker = checkpoints.read_marker(rundir, step)
    if marker is None:
        return Checkpoint(step=step, world_size=None, size=None, time=None)
    size = sum(file.size for file in marker.files.values())
    return Checkpoint(step=step, world_size=marker.world_size, size=size, time=checkpoints.completed_at(rundir, step))


def _settings(spec: RunSpec, environments: Mapping[int, Environment]) -> dict[str, Setting]:
    """Every field with where its value came from: what an attempt was started with is on record with it."""
    sources: dict[str, str] = {}
    for attempt, environment in sorted(environments.items()):
        sources.update(environment.sources)
        for text in environment.overrides if not environment.sources else ():
            sources[text.partition("=")[0].lstrip("+~")] = f"command line of attempt {attempt}"
    recorded = any(environment.sources for environment in environments.values())
    return {
        name: Setting(value=text, source=_source(name, sources) or ("default" if recorded else "not recorded"))
        for name, text in _leaves(spec.to_dict())
    }


def _source(name: str, sources: Mapping[str, str]) -> str:
    """Of the name itself, or of the mapping that was given as a whole."""
    while name not in sources and "." in name:
        name = name.rpartition(".")[0]
    return sources.get(name, "")


def _leaves(tree: Mapping[str, object], prefix: str = "") -> list[tuple[str, str]]:
    rows = []
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            rows += _leaves(value, f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", _text(value)))
    return rows


def _text(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value)) or "none"
    return str(value) if value != {} else "none"
