"""The verbs that change a run, ``run``, ``resume``, ``rescale`` and ``stop``: arguments in, text out, exit status back."""

from __future__ import annotations

import dataclasses
import os
import signal
import time

from rich.console import Console

from zephon.errors import ConfigError
from zephon.exits import Exit
from zephon.launch import control
from zephon.launch import start as launcher
from zephon.launch.backends.registry import backend_of
from zephon.launch.cli.arguments import Arguments
from zephon.launch.cli.asking import chosen
from zephon.launch.cli.display import follow, one_line
from zephon.launch.cli.grammar import DEFAULT_RUNS
from zephon.launch.cli.plan import config_text
from zephon.launch.cli.views import run_of
from zephon.launch.cli.wording import duration, resize_text
from zephon.launch.config.compose import Composed, compose
from zephon.launch.status import LIVE, RunStatus, find_run, records_dir, run_names, status_of
from zephon.run.contract_file import read_contract
from zephon.run.directory import TENSORBOARD, RunDir
from zephon.run.specs import newest_spec

_CLUSTER_POLL_S = 1.0
_LOOKING = "looking at data, tokenizer and space ..."


def run(arguments: Arguments, console: Console) -> int:
    """Starts, resumes or rescales: whatever brings the run to what was asked for."""
    if arguments.multirun:
        from zephon.launch.cli.sweep import sweep

        return sweep(arguments, console)
    composed = compose(arguments.overrides, config_dir=arguments.config_dir, explain=not arguments.cfg)
    if arguments.cfg or arguments.info:
        console.print(config_text(composed, sources=arguments.info), markup=False, highlight=False)
        return 0
    composed = dataclasses.replace(composed, spec=launcher.as_read(composed.spec))
    rundir = launcher.rundir_of(composed.spec)
    if arguments.fork is None and rundir.attempts() and (status := status_of(rundir)).live:
        return _converge(composed, rundir, status, arguments, console)
    with console.status(_LOOKING):
        started = launcher.start(
            composed.spec,
            overrides=composed.overrides,
            choices=composed.choices,
            sources=composed.sources,
            allow=arguments.allow,
            fork=arguments.fork,
            worker=arguments.worker,
        )
    return _after_start(started, arguments, console)


def _converge(composed: Composed, rundir: RunDir, status: RunStatus, arguments: Arguments, console: Console) -> int:
    """``run`` on a running run: another ``nodes=`` rescales it, nothing else can change while it runs."""
    launcher.check_known(status.name, status.attempt, status.state, status.message)
    running, wanted = newest_spec(rundir), composed.spec
    if dataclasses.replace(wanted, nodes=running.nodes, runs=running.runs, name=running.name) != running:
        from zephon.launch import contract as contracts

        contracts.check(read_contract(rundir), wanted, run=wanted.name)
        raise ConfigError(
            f"{status.name} is running (attempt {status.attempt}) with other settings than these",
            follows="they could not take effect before the next start",
            remedy=f"stop it first ({_command('stop', status.url)}), or give it another name=",
        )
    if wanted.nodes == status.target:
        followed = not arguments.detach and _followed(rundir, status.attempt)
        also = "; following it" if followed else ""
        console.print(f"{status.name} is running already at nodes={wanted.nodes}{also}", highlight=False)
        return _follow(rundir, arguments, console) if followed else 0
    return _rescale(rundir, wanted.nodes, arguments, console)


def _after_start(started: launcher.Started, arguments: Arguments, console: Console) -> int:
    if started.handle is None:
        console.print(started.note, highlight=False)
        return 0
    resumed = f", going on from the checkpoint of step {started.resumed_at}" if started.resumed_at else ""
    if resumed and newest_spec(started.rundir).checkpoint.resume == "last_good":
        resumed += ", or an earlier one where that is damaged"
    console.print(f"{started.rundir.url}  attempt {started.attempt}{resumed}  {started.handle}", highlight=False)
    for remark in started.remarks:
        console.print(f"note: {remark}", highlight=False)
    if arguments.detach or not _followed(started.rundir, started.attempt):
        see, logs, end = (_command(verb, started.rundir.url) for verb in ("status", "logs", "stop"))
        console.print(f"running in the background; see: {see}, {logs}, {end}", highlight=False)
        return 0
    return _follow(started.rundir, arguments, console)


def _followed(rundir: RunDir, attempt: int) -> bool:
    """Whether there is something to follow: not where only the nodes see the run directory."""
    return backend_of(rundir, attempt).here or os.path.dirname(rundir.root) != str(records_dir())


def _follow(rundir: RunDir, arguments: Arguments, console: Console) -> int:
    """Follows to the end. The first Ctrl-C drains a run of this machine; a run of a cluster goes on without this terminal."""
    here = backend_of(rundir, rundir.attempts()[-1]).here
    try:
        status = follow(rundir, console=console, every_s=0.2 if here else _CLUSTER_POLL_S)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if not here:
            see, follow_logs, end = (_command(verb, rundir.url) for verb in ("status", "logs -f", "stop"))
            console.print(f"the run goes on; follow it again with: {see} or {follow_logs}; end it with: {end}", highlight=False)
            return Exit.INTERRUPTED
        begun = status_of(rundir).progress_age_s is not None
        doing = "finishing the step and saving" if begun else "stopping; no step was made, so there is nothing to save"
        console.print(f"{doing} (Ctrl-C again leaves; the stop goes on) ...", highlight=False)
        control.stop(rundir, wait_s=0)
        status = follow(rundir, console=console)
    return report_end(status, console, again=arguments.line)


def report_end(status: RunStatus, console: Console, *, again: str = "") -> int:
    """Prints how a run has ended, and returns its exit status.

    Args:
        again: what was typed to start it. Before the first step there is nothing to resume from: it is typed again.
    """
    if status.state == "DONE":
        _print_done(status, console)
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
    go_on = again if again and not status.step else _command("resume", status.url)
    error.print(f"  logs: {_command('logs', status.url)}   go on with: {go_on}", highlight=False)
    return status.status or Exit.FAILED


def _print_done(status: RunStatus, console: Console) -> None:
    """What was done in which time, where it lies, how to look at it and how to take the weights out."""
    took = f" in {duration(status.took_s)}" if status.took_s is not None else ""
    kept = "no checkpoint" if status.checkpoint is None else f"the last checkpoint is of step {status.checkpoint}"
    see, logs = _command("status", status.url), _command("logs", status.url)
    rundir = RunDir(status.url)
    lines = [
        f"done: {status.step} steps{took}, last digest {status.digest[:16]}",
        f"  run:     {status.url}, {kept}",
        f"  look:    {see}, {logs}",
    ]
    if rundir.exists(TENSORBOARD):
        lines.append(f"  curves:  tensorboard --logdir {rundir.path(TENSORBOARD)}")
    if status.checkpoint is not None:
        lines.append(f"  export:  python -m zephon.train.hf --run {status.url} --out DIR")
    for line in lines:
        console.print(line, highlight=False)


def _command(verb: str, url: str) -> str:
    """A command line that works as printed, also when runs are not in the default place."""
    runs, _, name = url.rstrip("/").rpartition("/")
    searched = (os.path.abspath(DEFAULT_RUNS), str(records_dir()))  # every verb searches these without runs=
    elsewhere = "" if os.path.abspath(runs) in searched else f" runs={runs}"
    return f"zephon {verb} {name}{elsewhere}"


def resume(arguments: Arguments, console: Console) -> int:
    rundir = run_of(arguments)
    with console.status(_LOOKING):
        started = launcher.resume(
            rundir,
            arguments.overrides,
            allow=arguments.allow,
            fork=arguments.fork,
            worker=arguments.worker,
            config_dir=arguments.config_dir,
        )
    return _after_start(started, arguments, console)


def stop(arguments: Arguments, console: Console) -> int:
    rundir = run_of(arguments) if arguments.names else _running(arguments)
    if rundir is None:
        console.print("nothing was stopped", highlight=False)
        return Exit.INTERRUPTED
    before = status_of(rundir)
    if before.state not in LIVE:
        console.print(f"{before.name} is not running: {before.state} at step {before.step} of {before.steps}", highlight=False)
        return 0
    status = control.stop(rundir, wait_s=0 if arguments.no_wait else None)
    if status.state == "FAILED":
        return report_end(status, console)
    report_end(status, console) if status.state not in LIVE else console.print(one_line(status), highlight=False)
    return 0


def _running(arguments: Arguments) -> RunDir | None:
    """The run to stop where none was named: the one that is running; of several the caller chooses, or none."""
    top = arguments.runs.rstrip("/")
    running = [name for name in run_names(arguments.runs) if status_of(RunDir(f"{top}/{name}")).live]
    if len(running) < 2:
        return find_run(running[0] if running else None, arguments.runs)
    question, remedy = f"{len(running)} runs are running; which one stops?", f"name one: zephon stop {' | '.join(running)}"
    name = chosen(question, running, remedy=remedy)
    return find_run(name, arguments.runs) if name else None


def rescale(arguments: Arguments, console: Console) -> int:
    rundir = run_of(arguments)
    text = arguments.own.get("nodes", "")
    if not text.isdigit():
        raise ConfigError(
            f"rescale needs nodes=N, not {text!r}" if text else "rescale needs nodes=N",
            remedy=f"for example: zephon rescale {rundir.root.rsplit('/', 1)[-1]} nodes=2",
        )
    return _rescale(rundir, int(text), arguments, console)


def _not_running(status: RunStatus, nodes: int) -> ConfigError:
    if status.state == "DONE":
        return ConfigError(
            f"{status.name} is finished: {status.step} of {status.steps} steps are done",
            follows="there is no node left whose number could change",
            remedy=f"begin a new run from its last checkpoint: {_command('resume', status.url)} fork=NAME",
        )
    return ConfigError(
        f"{status.name} is not running: {status.state} at step {status.step} of {status.steps}",
        follows="there is no node whose number could change",
        remedy=f"go on with it at that size: {_command('resume', status.url)} nodes={nodes}",
    )


def _rescale(rundir: RunDir, nodes: int, arguments: Arguments, console: Console) -> int:
    before, began = status_of(rundir), time.monotonic()
    if before.state not in LIVE:
        raise _not_running(before, nodes)
    if before.state in control.UNSETTLED:
        console.print(f"{before.name} is {before.state}; its size is changed when it makes steps", highlight=False)
    if text := backend_of(rundir, before.attempt).preview(rundir, before.attempt, nodes):
        console.print(text, highlight=False, markup=False)
    status = control.rescale(rundir, nodes, wait_s=0 if arguments.no_wait else None)
    if status.state not in LIVE:
        return report_end(status, console)
    if arguments.no_wait:
        console.print(f"asked for {nodes} nodes; see: {_command('status', rundir.url)}", highlight=False)
        return 0
    took = time.monotonic() - began
    console.print(f"{status.name}: {status.nodes} nodes, world {status.world_size}, settled in {took:.1f} s", highlight=False)
    if status.resize is not None and status.resize != before.resize:
        console.print(resize_text(status.resize), highlight=False)
    return 0
