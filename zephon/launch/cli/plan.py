"""``plan``: what would be submitted, what differs from the run, which node counts fit, and what it will take.

The object at the end is the one a submit sends: the same function makes it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence

import yaml
from rich.console import Console
from rich.table import Table

from zephon.errors import ConfigError, ZephonError
from zephon.fastjson import Json
from zephon.launch import contract as contracts
from zephon.launch import start as launcher
from zephon.launch.backends.base import Away
from zephon.launch.backends.registry import backend
from zephon.launch.cli.arguments import Arguments
from zephon.launch.cli.curriculum import WIDTH, data_table, picture
from zephon.launch.config.compose import Composed, compose
from zephon.launch.config.sources import annotated
from zephon.launch.data_plan import DataPlan, data_plan, shares_at
from zephon.launch.estimate import Estimate, checkpoints_kept, estimate
from zephon.run.checkpoints import newest_checkpoint
from zephon.run.contract_file import has_contract, read_contract
from zephon.run.directory import RunDir
from zephon.spec.experiment import RunSpec
from zephon.stages import stage as stages
from zephon.stages.record import would_run
from zephon.world import World


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeCount:
    """One row of the table of node counts.

    Args:
        nodes, ranks: data-parallel ranks are nodes x workers per node / tensor parallel.
        kind: whole, shared, uneven or impossible.
        fits: whether ``lanes.allow`` permits it.
        microbatches: forwards of the busiest rank in one step.
        efficiency: useful rows / rows that all ranks run, and reading work shared lanes repeat.
    """

    nodes: int
    ranks: int
    kind: str
    fits: bool
    microbatches: int | None
    efficiency: float | None


def node_counts(spec: RunSpec) -> list[NodeCount]:
    """Every node count of the elastic range."""
    return [_count(spec, nodes) for nodes in range(spec.elastic.nodes_min, spec.elastic.nodes_max + 1)]


def _count(spec: RunSpec, nodes: int) -> NodeCount:
    procs, tensor = nodes * spec.elastic.procs_per_node, spec.trainer.tensor_parallel
    if procs % tensor:
        return NodeCount(nodes=nodes, ranks=0, kind="impossible", fits=False, microbatches=None, efficiency=None)
    ranks = procs // tensor
    try:
        world = World(spec.lanes.count, spec.global_batch_size, ranks, "uneven")
    except ConfigError:
        return NodeCount(nodes=nodes, ranks=ranks, kind="impossible", fits=False, microbatches=None, efficiency=None)
    forwards = [world.microbatches(rank, spec.trainer.microbatch_size) for rank in range(ranks)]
    most = max(len(batches) for batches in forwards)
    busiest = max(sum(batch.last - batch.first for batch in batches) for batches in forwards)
    return NodeCount(
        nodes=nodes,
        ranks=ranks,
        kind=world.kind,
        fits=ranks in World(spec.lanes.count, spec.global_batch_size, 1, spec.lanes.allow).allowed(),
        microbatches=most,
        efficiency=spec.global_batch_size / (ranks * busiest) if busiest else None,
    )


def node_table(spec: RunSpec) -> Table:
    table = Table(box=None, padding=(0, 2))
    for title in ("nodes", "ranks", "lanes", "microbatches per rank", "efficiency", ""):
        table.add_column(title, justify="right" if title in ("nodes", "ranks", "efficiency") else "left")
    for row in node_counts(spec):
        note = "" if row.fits else "no" if row.kind == "impossible" else f"with lanes.allow={row.kind}"
        mark = "asked for" if row.nodes == spec.nodes else ""
        forwards = str(row.microbatches) if row.microbatches is not None else "–"
        efficiency = f"{row.efficiency:.0%}" if row.efficiency is not None else "–"
        style = "" if row.fits else "dim"
        table.add_row(str(row.nodes), str(row.ranks), row.kind, forwards, efficiency, note or mark, style=style)
    return table


def difference_table(differences: Sequence[contracts.Difference]) -> Table:
    """Field, value of the run, value now."""
    table = Table(box=None, padding=(0, 2))
    table.add_column("field", style="bold")
    table.add_column("run", style="green")
    table.add_column("now", style="red")
    table.add_column("")
    for difference in differences:
        table.add_row(difference.field, contracts.shown(difference.run), contracts.shown(difference.now), difference.kind)
    return table


_WHO_RUNS_STAGES = """on the cluster the first node carries out one stage after the other: before train the other nodes wait,
after it they have ended. The cluster checks data, packages and functions; this machine does not see a change in them"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Plan:
    """What a start would do now."""

    spec: RunSpec
    rundir: RunDir
    attempt: int
    differences: list[contracts.Difference]
    runs_stage: dict[str, bool]
    request: str
    data: DataPlan | None


def plan(arguments: Arguments, console: Console) -> int:
    """Prints the plan; exit status 65 when a start would be refused."""
    spec = launcher.as_read(compose(arguments.overrides, config_dir=arguments.config_dir).spec)
    stages.check(spec, here=backend(spec.scheduler.name).here)
    rundir = launcher.rundir_of(spec)
    attempt = max(rundir.attempts(), default=0) + 1
    seen = launcher.data_seen(spec, ids=has_contract(rundir))  # once: the listing of a large store takes its time
    planned = _Plan(
        spec=spec,
        rundir=rundir,
        attempt=attempt,
        differences=launcher.contract_differences(rundir, spec, seen=seen),
        runs_stage=_runs_stage(spec, rundir, seen.files),
        request=str(launcher.request_of(spec, rundir, attempt, arguments.worker)),
        data=data_plan(spec, rundir) if seen.files is not None else None,
    )
    remarks, refusal = _examined(spec, rundir, attempt)
    remarks += _of_data(spec)
    if arguments.json:
        print(json.dumps({**_as_json(planned), "cluster": remarks}))
    else:
        _print(planned, console)
        for remark in remarks:
            console.print(f"note: {remark}", highlight=False)
    if planned.differences:
        steps = launcher.steps_done(rundir)
        contracts.check(read_contract(rundir), spec, allow=arguments.allow, run=spec.name, seen=seen, steps=steps)
    if refusal is not None:
        raise refusal
    return 0


def _examined(spec: RunSpec, rundir: RunDir, attempt: int) -> tuple[list[str], ZephonError | None]:
    """What the cluster says of the job, and why it would refuse it. A plan needs no cluster: one that is away is a remark."""
    try:
        return list(backend(spec.scheduler.name).examine(launcher.job_of(spec, rundir, attempt))), None
    except Away as error:
        return [f"the cluster was not asked: {error.what}"], None
    except ZephonError as error:
        return [], error


def _of_data(spec: RunSpec) -> list[str]:
    """That lanes would have nothing to read, where this machine sees the data."""
    if not backend(spec.scheduler.name).here:
        return []
    from zephon.launch import preflight  # the loader

    try:
        few = preflight.check_lanes(spec)
    except ZephonError as error:  # a start says so
        return [f"the data was not looked at: {error.what}"]
    return [few] if few else []


def _runs_stage(spec: RunSpec, rundir: RunDir, files: Mapping[str, Json] | None) -> dict[str, bool]:
    """Which stages would run; the others are done."""
    untrained, here = spec.trainer.steps > newest_checkpoint(rundir), backend(spec.scheduler.name).here
    return {
        stage.name: untrained if stage.name == stages.TRAIN else would_run(stage, spec, rundir, here=here, files=files)
        for stage in stages.stages_of(spec)
    }


def _as_json(planned: _Plan) -> dict[str, object]:
    return {
        "spec": planned.spec.to_dict(),
        "sha256": planned.spec.sha256(),
        "differences": [dataclasses.asdict(difference) for difference in planned.differences],
        "nodes": [dataclasses.asdict(row) for row in node_counts(planned.spec)],
        "estimate": dataclasses.asdict(estimate(planned.spec)),
        "data": None if planned.data is None else dataclasses.asdict(planned.data),
        "request": planned.request,
    }


def _print(planned: _Plan, console: Console) -> None:
    def heading(text: str) -> None:
        console.print(f"\n{text}", style="bold")

    spec, rundir = planned.spec, planned.rundir
    where = launcher.url_of(spec, rundir)
    console.print(f"{spec.name}  attempt {planned.attempt} in {where}, spec {spec.sha256()[:16]}", highlight=False)
    console.print(yaml_text(spec), markup=False, highlight=False)
    heading("contract")
    if not has_contract(rundir):
        console.print("a new run: nothing is promised yet", highlight=False)
    elif planned.differences:
        console.print(difference_table(planned.differences))
    else:
        console.print("no difference to the run", highlight=False)
    heading(f"node counts ({spec.lanes.count} lanes, global batch {spec.global_batch_size}, lanes.allow={spec.lanes.allow})")
    console.print(node_table(spec))
    if planned.data is not None:
        heading(f"data, by step {spec.trainer.steps:,}")
        console.print(data_table(planned.data))
        for line in picture(planned.data, shares_at(spec, WIDTH)) if planned.data.phases else ():
            console.print(line, highlight=False)
        console.print(f"shuffle: {planned.data.mixing}", highlight=False)
        for warning in planned.data.warnings:
            console.print(f"warning: {warning}", highlight=False)
    heading("estimate")
    console.print(_estimate_text(spec, estimate(spec)), highlight=False)
    if len(planned.runs_stage) > 1:
        heading("stages")
        for name, runs in planned.runs_stage.items():
            console.print(f"{name:<12} {'would run' if runs else 'done, would be skipped'}", highlight=False)
        if not backend(spec.scheduler.name).here:
            console.print(_WHO_RUNS_STAGES, highlight=False)
    heading(f"what a submit to scheduler={spec.scheduler.name} sends")
    console.print(planned.request, markup=False, highlight=False)


def _estimate_text(spec: RunSpec, guess: Estimate) -> str:
    tokens = f"{guess.tokens:,} tokens in {spec.trainer.steps} steps"
    if guess.parameters is None or guess.state_bytes is None or guess.checkpoint_bytes is None:
        return f"{tokens}; the model's size depends on the tokenizer's vocabulary"
    kept = checkpoints_kept(spec)
    return (
        f"{tokens}; {guess.parameters / 1e6:.2f} M parameters, {_size(guess.state_bytes)} of training state per replica;\n"
        f"a checkpoint is about {_size(guess.checkpoint_bytes)}, {kept} are kept: {_size(kept * guess.checkpoint_bytes)}"
    )


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            return f"{value:.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def config_text(composed: Composed, *, sources: bool) -> str:
    """The composed experiment as YAML; with ``sources``, choices and arguments above it and each value's source beside it."""
    if not sources:
        return yaml_text(composed.spec)
    chosen = "\n".join(
        f"#   {group.removesuffix('@_global_'):<12} {choice}" for group, choice in sorted(composed.choices.items())
    )
    typed = "\n".join(f"#   {override}" for override in composed.overrides) or "#   nothing"
    order = "# precedence, weakest first: spec defaults, groups, experiment, command line"
    text = annotated(_plain(composed.spec), composed.sources)
    return "\n".join([order, "# groups chosen:", chosen, "# typed:", typed, text])


def yaml_text(spec: RunSpec) -> str:
    """The experiment as YAML that composes again."""
    return yaml.safe_dump(_plain(spec), sort_keys=False).rstrip()


def _plain(spec: RunSpec) -> Json:
    """With lists for tuples, as YAML and JSON have them."""
    plain: Json = json.loads(json.dumps(spec.to_dict()))
    return plain
