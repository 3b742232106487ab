"""One function per verb: arguments in, text out, exit status back."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from zephon.errors import ConfigError
from zephon.exits import Exit
from zephon.launch import control
from zephon.launch import start as session
from zephon.launch.backends.local import scheduler as local
from zephon.launch.cli.arguments import Arguments
from zephon.launch.cli.display import duration, follow, one_line, resize_text, stages_text
from zephon.launch.config.compose import Composed, compose
from zephon.launch.job import DEFAULT_WORKER
from zephon.launch.status import LIVE, RunStatus, find_run, look, records_dir, run_names
from zephon.run.directory import RunDir
from zephon.run.specs import newest_spec

_CLUSTER_LOOK_S = 1.0


def run(arguments: Arguments, console: Console) -> int:
    """Starts, resumes or rescales: whatever brings the run to what was asked for."""
    if arguments.has("--multirun"):
        from zephon.launch.cli.sweep import sweep

        return sweep(arguments, console)
    config_dir = arguments.flags.get("--config-dir")
    composed = compose(arguments.words, config_dir=config_dir, explain=arguments.has("--info"))
    if arguments.has("--cfg") or arguments.has("--info"):
        return _show_config(composed, arguments, console)
    rundir = session.rundir_of(composed.spec)
    if arguments.fork is None and rundir.attempts() and (status := look(rundir)).state in LIVE and status.state != "QUEUED":
        return _converge(composed, rundir, status, arguments, console)
    started = session.start(
        composed.spec,
        words=composed.words,
        choices=composed.choices,
        allow=arguments.allow,
        fork=arguments.fork,
        worker=arguments.flags.get("--worker", DEFAULT_WORKER),
    )
    return _after_start(started, arguments, console)


def _converge(composed: Composed, rundir: RunDir, status: RunStatus, arguments: Arguments, console: Console) -> int:
    """``run`` on a running run: another ``nodes=`` rescales it, nothing else can change while it runs."""
    running, wanted = newest_spec(rundir), composed.spec
    if dataclasses.replace(wanted, nodes=running.nodes, runs=running.runs, name=running.name) != running:
        from zephon.launch import contract as contracts

        contracts.check(rundir.read_json("contract.json"), wanted, run=wanted.name)
        raise ConfigError(
            f"{status.name} is running (attempt {status.attempt}) with other settings than these",
            follows="they could not take effect before the next start",
            remedy=f"stop it first ({_command('stop', status.url)}), or give it another name=",
        )
    if wanted.nodes == status.target:
        followed = not arguments.detach and _followed(rundir, control.scheduler_of_attempt(rundir, status.attempt))
        also = "; following it" if followed else ""
        console.print(f"{status.name} is running already at nodes={wanted.nodes}{also}", highlight=False)
        return _follow(rundir, console) if followed else 0
    return _rescale(rundir, wanted.nodes, arguments, console)


def _after_start(started: session.Started, arguments: Arguments, console: Console) -> int:
    if started.handle is None:
        console.print(started.note, highlight=False)
        return 0
    resumed = f", going on from step {started.resumed_at}" if started.resumed_at else ""
    console.print(f"{started.rundir.url}  attempt {started.attempt}{resumed}  {started.handle}", highlight=False)
    if arguments.detach or not _followed(started.rundir, started.handle.partition("://")[0]):
        see, logs, end = (_command(verb, started.rundir.url) for verb in ("status", "logs", "stop"))
        console.print(f"running in the background; see: {see}, {logs}, {end}", highlight=False)
        return 0
    return _follow(started.rundir, console)


def _followed(rundir: RunDir, scheduler: str) -> bool:
    """Whether there is something to follow: not where only the nodes see the run directory."""
    return scheduler == "local" or (scheduler == "kubernetes" and os.path.dirname(rundir.root) != str(records_dir()))


def _follow(rundir: RunDir, console: Console) -> int:
    """Follows to the end. The first Ctrl-C drains a run of this machine; a cluster's is nobody's foreground and goes on."""
    here = control.scheduler_of_attempt(rundir, rundir.attempts()[-1]) == "local"
    try:
        status = follow(rundir, console=console, every_s=0.2 if here else _CLUSTER_LOOK_S)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if not here:
            see, follow_logs, end = (_command(verb, rundir.url) for verb in ("status", "logs -f", "stop"))
            console.print(f"the run goes on; look again with: {see} or {follow_logs}; end it with: {end}", highlight=False)
            return Exit.INTERRUPTED
        console.print("finishing the step and saving (Ctrl-C again leaves; the drain goes on) ...", highlight=False)
        session.stop(rundir, wait_s=0)
        status = follow(rundir, console=console)
    return report_end(status, console)


def report_end(status: RunStatus, console: Console) -> int:
    """The last words of a run, and its exit status."""
    if status.state == "DONE":
        console.print(f"done: {status.step} steps, last digest {status.digest[:16]}", highlight=False)
        return 0
    if status.state == "STOPPED":
        saved = status.checkpoint or 0
        kept = (
            "saved"
            if saved >= status.step > 0
            else f"the last checkpoint is of step {saved}"
            if saved
            else "nothing to save yet"
        )
        console.print(
            f"stopped at step {status.step} of {status.steps}, {kept}; go on with: {_command('resume', status.url)}",
            highlight=False,
        )
        return Exit.LEFT
    error = Console(stderr=True, soft_wrap=True, markup=False)
    error.print(
        f"{status.state.lower()} at step {status.step} of {status.steps}: {status.error or status.message}", highlight=False
    )
    error.print(f"  logs: {_command('logs', status.url)}   go on with: {_command('resume', status.url)}", highlight=False)
    return status.status or Exit.FAILED


def _command(verb: str, url: str) -> str:
    """A command line that works as printed, also when runs are not in the default place."""
    runs, _, name = url.rstrip("/").rpartition("/")
    found_anyway = (os.path.abspath("runs"), str(records_dir()))
    elsewhere = "" if os.path.abspath(runs) in found_anyway else f" runs={runs}"
    return f"zephon {verb} {name}{elsewhere}"


def resume(arguments: Arguments, console: Console) -> int:
    rundir = _find(arguments)
    started = session.resume(
        rundir,
        arguments.without("runs"),
        allow=arguments.allow,
        fork=arguments.fork,
        worker=arguments.flags.get("--worker"),
        config_dir=arguments.flags.get("--config-dir"),
    )
    return _after_start(started, arguments, console)


def stop(arguments: Arguments, console: Console) -> int:
    rundir = _find(arguments)
    before = look(rundir)
    if before.state not in LIVE:
        console.print(f"{before.name} is not running: {before.state} at step {before.step} of {before.steps}", highlight=False)
        return 0
    status = session.stop(rundir, wait_s=0 if arguments.has("--no-wait") else None)
    if status.state == "FAILED":
        return report_end(status, console)
    report_end(status, console) if status.state not in LIVE else console.print(one_line(status), highlight=False)
    return 0


def rescale(arguments: Arguments, console: Console) -> int:
    rundir = _find(arguments)
    text = arguments.word("nodes", "")
    if not text.isdigit():
        raise ConfigError(
            f"rescale needs nodes=N, not {text!r}" if text else "rescale needs nodes=N",
            follows="there is no size to change to",
            remedy=f"for example: zephon rescale {rundir.root.rsplit('/', 1)[-1]} nodes=2",
        )
    return _rescale(rundir, int(text), arguments, console)


def _rescale(rundir: RunDir, nodes: int, arguments: Arguments, console: Console) -> int:
    before, began = look(rundir), time.monotonic()
    if before.state in session.UNSETTLED:
        console.print(f"{before.name} is {before.state}; its size is changed when it makes steps", highlight=False)
    if text := control.preview(rundir, before.attempt, nodes):
        console.print(text, highlight=False, markup=False)
    status = session.rescale(rundir, nodes, wait_s=0 if arguments.has("--no-wait") else None)
    if status.state not in LIVE:
        return report_end(status, console)
    if arguments.has("--no-wait"):
        console.print(f"asked for {nodes} nodes; see: {_command('status', rundir.url)}", highlight=False)
        return 0
    took = time.monotonic() - began
    console.print(f"{status.name}: {status.nodes} nodes, world {status.world_size}, settled in {took:.1f} s", highlight=False)
    if status.resize and status.resize["generation"] != (before.resize or {}).get("generation"):
        console.print(resize_text(status.resize), highlight=False)
    return 0


def status(arguments: Arguments, console: Console) -> int:
    found = look(_find(arguments))
    if arguments.has("--json"):
        print(json.dumps(dataclasses.asdict(found)))
        return 0
    console.print(status_table(found))
    return 0


def first_line(text: str) -> str:
    """What is wrong, without what follows and what to do: those are in the logs."""
    return text.strip().partition("\n")[0].strip()


def status_table(found: RunStatus) -> Table:
    """Everything ``status`` knows, the last error first."""
    table = Table.grid(padding=(0, 2))
    rows: list[tuple[str, Any]] = []
    if found.error:
        rows.append(("last error", first_line(found.error)))
    told = first_line(found.message) if (found.state not in ("TRAINING", "DONE") or found.early) and not found.error else ""
    rows += [
        ("run", f"{found.name}  ({found.url})"),
        ("state", found.state + (f": {told}" if told else "")),
        (
            "step",
            f"{found.step} of {found.steps}"
            + (f", {duration(found.eta_s)} left" if found.eta_s and found.state in LIVE else ""),
        ),
        ("loss", f"{found.loss:.4f}" if found.loss is not None else "–"),
        ("speed", f"{found.tokens_per_s:,.0f} tokens/s" if found.tokens_per_s is not None else "–"),
        ("size", f"{found.nodes} of {found.target} nodes, world {found.world_size}"),
        ("attempt", f"{found.attempt}, generation {found.generation}"),
        *([("stages", stages_text(found.stages))] if found.stages else []),
        ("counted", f"{found.failures} failures, {found.lost} lost nodes, {found.resizes} resizes"),
    ]
    if found.resize is not None:
        rows.append(("last resize", resize_text(found.resize)))
    if found.checkpoint is not None:
        rows.append(("checkpoint", f"step {found.checkpoint}, {duration(found.checkpoint_age_s)} old"))
    if found.progress_age_s is not None and found.state in LIVE:
        rows.append(("last sign of life", f"{duration(found.progress_age_s)} ago"))
    for name, value in rows:
        table.add_row(Text(name, style="bold"), Text(str(value)))
    return table


def list_runs(arguments: Arguments, console: Console) -> int:
    local.prune()
    runs = arguments.word("runs", "runs")
    found = [look(RunDir(f"{runs.rstrip('/')}/{name}")) for name in run_names(runs)]
    if arguments.has("--json"):
        print(json.dumps([dataclasses.asdict(each) for each in found]))
        return 0
    if not found:
        console.print(f"no runs in {runs}", highlight=False)
        return 0
    table = Table(box=None, padding=(0, 2))
    for title in ("run", "state", "step", "loss", "nodes", "attempt", "last error"):
        table.add_column(title)
    for each in found:
        loss = f"{each.loss:.4f}" if each.loss is not None else "–"
        table.add_row(
            each.name,
            each.state,
            f"{each.step}/{each.steps}",
            loss,
            str(each.nodes),
            str(each.attempt),
            first_line(each.error)[:60],
        )
    console.print(table)
    return 0


def logs(arguments: Arguments, console: Console) -> int:
    from zephon.launch.cli.logs import show, show_remote

    rundir = _find(arguments)
    attempt = rundir.attempts()[-1]
    return (show if control.scheduler_of_attempt(rundir, attempt) == "local" else show_remote)(rundir, arguments, console)


def plan(arguments: Arguments, console: Console) -> int:
    from zephon.launch.cli.plan import show

    composed = compose(arguments.words, config_dir=arguments.flags.get("--config-dir"))
    return show(composed, arguments, console)


def doctor(arguments: Arguments, console: Console) -> int:
    from zephon.launch.cli.doctor import examine

    return examine(arguments, console)


def verify(arguments: Arguments, console: Console) -> int:
    """Compares one run's ledger with itself over its attempts, or with another run's."""
    from zephon.launch.cli.verify import compare_runs

    if len(arguments.names) > 2:
        raise ConfigError("verify takes one or two runs", follows="the others would be ignored", remedy="name at most two")
    runs = arguments.word("runs", "runs")
    first = find_run(arguments.names[0] if arguments.names else None, runs)
    second = find_run(arguments.names[1], runs) if len(arguments.names) == 2 else None
    return compare_runs(first, second, console)


def _find(arguments: Arguments) -> RunDir:
    if len(arguments.names) > 1:
        raise ConfigError(
            f"{arguments.verb} works on one run, not on {', '.join(arguments.names)}",
            follows="only one of them would be taken",
            remedy="give one name",
        )
    return find_run(arguments.names[0] if arguments.names else None, arguments.word("runs", "runs"))


def _show_config(composed: Composed, arguments: Arguments, console: Console) -> int:
    from zephon.launch.cli.plan import config_text

    console.print(config_text(composed, sources=arguments.has("--info")), markup=False, highlight=False)
    return 0
