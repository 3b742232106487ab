"""``doctor``: checks everything that a run needs, before a run needs it; each finding with its remedy.

zephon doctor                      this machine
zephon doctor conf=exp1 nodes=4    also the experiment's data, tokenizer, run directory and scheduler
"""

from __future__ import annotations

import dataclasses
import os
import resource
import shutil
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from zephon.errors import ConfigError, ZephonError
from zephon.exits import Exit
from zephon.launch import preflight
from zephon.launch import start as launcher
from zephon.launch.backends.local.gpus import devices
from zephon.launch.backends.local.index import apps
from zephon.launch.backends.local.supervision import read_state
from zephon.launch.backends.registry import backend
from zephon.launch.cli.arguments import Arguments
from zephon.launch.cli.grammar import DEFAULT_RUNS
from zephon.launch.config.compose import compose
from zephon.run.attempt import index_dir
from zephon.run.directory import RunDir
from zephon.run.environment import version_of
from zephon.spec.experiment import RunSpec

_MAX_SKEW_S = 2.0
_MIN_FILES = 1024
_UNUSUAL = "naïve café, Ελληνικά, 中文, हिन्दी, 👩‍🚀 emoji, tabs\tand\r\nlines,   spaces, <|endoftext|> as text, 1234567890"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the table."""

    subject: str
    verdict: Literal["ok", "warning", "problem"]
    what: str
    remedy: str = ""


def doctor(arguments: Arguments, console: Console) -> int:
    """Prints the table; 2 when anything is a problem."""
    console.print("checking this machine" + (" and the experiment ..." if arguments.overrides else " ..."), highlight=False)
    rows = list(findings(arguments))
    table = Table(box=None, padding=(0, 2))
    for title in ("subject", "", "finding", "fix"):
        table.add_column(title)
    colours = {"ok": "green", "warning": "yellow", "problem": "bold red"}
    for row in rows:
        table.add_row(Text(row.subject), Text(row.verdict, style=colours[row.verdict]), Text(row.what), Text(row.remedy))
    console.print(table)
    return Exit.DISAGREES if any(row.verdict == "problem" for row in rows) else Exit.DONE


def stage(rundir: RunDir, spec: RunSpec) -> dict[str, object]:
    """The stage ``doctor``: every check of this machine and of the experiment.

    Raises:
        ConfigError: anything is a problem.
    """
    rows = [*_machine(), *_experiment(spec, submitted=True)]
    for row in rows:
        print(f"{row.subject}: {row.verdict}: {row.what}")
    problems = [row for row in rows if row.verdict == "problem"]
    if problems:
        raise ConfigError(
            "; ".join(f"{row.subject}: {row.what}" for row in problems),
            follows="the run would fail when it first needs it",
            remedy="; ".join(row.remedy for row in problems if row.remedy) or "see the findings",
        )
    return {"findings": [dataclasses.asdict(row) for row in rows]}


def findings(arguments: Arguments) -> Iterator[Finding]:
    """Every check, in order; one that breaks is itself a finding."""
    yield from _machine()
    runs = [override.partition("=")[2] for override in arguments.overrides if override.startswith("runs=")]
    if len(runs) == len(arguments.overrides):
        yield from _guarded("run directory", lambda: _writable(RunDir(runs[-1] if runs else DEFAULT_RUNS)))
        return
    try:
        spec = compose(arguments.overrides, config_dir=arguments.config_dir).spec
    except ZephonError as error:
        yield Finding("experiment", "problem", error.what, error.remedy)
        return
    yield Finding("experiment", "ok", f"{spec.name}: composes")
    yield from _experiment(spec)


def _machine() -> Iterator[Finding]:
    for subject, check in _MACHINE:
        yield from _guarded(subject, check)


def _experiment(spec: RunSpec, *, submitted: bool = False) -> Iterator[Finding]:
    here = submitted or backend(spec.scheduler.name).here
    for subject, examination in preflight.examinations(spec, launcher.rundir_of(spec), here=here):
        yield from _guarded(subject, lambda: iter([Finding(subject, "ok", examination())]))  # noqa: B023 - called at once
    for subject, examine_spec in _EXPERIMENT:
        if examine_spec is _scheduler and submitted and not backend(spec.scheduler.name).here:
            continue  # it has started this process, which has no right to ask it for anything
        yield from _guarded(subject, lambda examine_spec=examine_spec: examine_spec(spec))  # type: ignore[misc]


def _guarded(subject: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from check()
    except ZephonError as error:
        yield Finding(subject, "problem", error.what, error.remedy)
    except Exception as error:  # noqa: BLE001 - doctor reports whatever breaks and goes on with the other checks
        yield Finding(subject, "problem", f"{type(error).__name__}: {error}", "see the message")


def _python() -> Iterator[Finding]:
    yield Finding("Python", "ok", sys.version.split()[0])


def _packages() -> Iterator[Finding]:
    for name in ("torch", "torchx-nightly", "hydra-core", "omegaconf", "numpy", "kubernetes"):
        installed = version_of(name)
        yield Finding(name, "ok", installed) if installed else Finding(name, "problem", "not installed", f"pip install {name}")
    if stock := version_of("torchx"):
        yield Finding(
            "torchx",
            "problem",
            f"the release torchx {stock} is installed beside or instead of torchx-nightly",
            "pip uninstall torchx, then reinstall torchx-nightly: both own the package named torchx",
        )
    if other := version_of("zephon"):
        yield Finding(
            "zephon",
            "problem",
            f"another distribution named zephon ({other}) is installed",
            "pip uninstall zephon: it has our import name",
        )


def _devices() -> Iterator[Finding]:
    gpus = devices("auto")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding("devices", "ok", f"{cores} CPU cores, {len(gpus)} GPUs")


def _processes() -> Iterator[Finding]:
    if not sys.platform.startswith("linux"):
        yield Finding(
            "processes", "warning", f"{sys.platform} cannot tie processes to their parents", "run on Linux where it matters"
        )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _MIN_FILES:
        yield Finding("open files", "warning", f"limit {soft} (hard limit {hard})", f"ulimit -n {min(hard, 65536)}")
    else:
        yield Finding("open files", "ok", f"limit {soft}")


def _network() -> Iterator[Finding]:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), timeout=5):
        yield Finding("loopback", "ok", "connections work")
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        yield Finding("host name", "ok", f"{name} does not resolve; addresses are used, never this name")


def _state() -> Iterator[Finding]:
    directory = index_dir()
    directory.mkdir(parents=True, exist_ok=True)
    probe = directory / f"probe-{uuid.uuid4().hex}"
    probe.write_text("x")
    probe.unlink()
    yield Finding("state directory", "ok", str(directory))
    for entry in apps():
        read_state(entry.rundir, entry.attempt)  # ends what a killed supervisor may have left


def _back_ends(spec: RunSpec) -> Iterator[Finding]:
    from pydoc_data.topics import topics

    from zephon.ops.tokenizers import check_parity, load_tokenizer

    tokenizer = load_tokenizer(spec.tokenizer.id, backend=spec.tokenizer.backend)
    _, differs = check_parity(tokenizer, [_UNUSUAL, *list(topics.values())[:20]], limit_bytes=1 << 17)
    if differs:
        yield Finding("tokenizer", "warning", differs, "set tokenizer.backend=tokenizers")


def _lanes(spec: RunSpec) -> Iterator[Finding]:
    if not backend(spec.scheduler.name).here:
        return
    try:
        few = preflight.check_lanes(spec)
    except ZephonError:  # which is said of the dataset already
        return
    if few:
        what, _, remedy = few.partition("; ")
        yield Finding("lanes", "warning", what, remedy)
    else:
        yield Finding("lanes", "ok", f"{spec.lanes.count}, each with documents to read")


def _run_directory(spec: RunSpec) -> Iterator[Finding]:
    rundir = launcher.rundir_of(spec)
    yield from _writable(rundir if rundir.local else RunDir(spec.runs))


def _writable(rundir: RunDir) -> Iterator[Finding]:
    if rundir.local:  # the nearest directory that exists: doctor leaves no directory of its own
        directory = Path(rundir.root)
        while not directory.exists():
            directory = directory.parent
        rundir = RunDir(str(directory))
    name = f"doctor-{uuid.uuid4().hex}.json"
    before = time.time()
    rundir.write_bytes(name, data=b"{}\n")
    info = rundir.fs.info(rundir.path(name))
    after = time.time()
    rundir.fs.rm_file(rundir.path(name))
    yield Finding("run directory", "ok", f"{rundir.root} is writable")
    modified = info.get("mtime")
    if isinstance(modified, (int, float)):
        skew = max(before - modified, modified - after, 0.0)
        if skew > _MAX_SKEW_S:
            yield Finding(
                "clock",
                "problem",
                f"the file system's clock is {skew:.0f} s away from this machine's",
                "synchronize the clocks",
            )
        else:
            yield Finding("clock", "ok", "agrees with the file system's")
    if rundir.local:
        yield Finding("space", "ok", f"{shutil.disk_usage(rundir.root).free / 2**30:.1f} GiB free")


def _scheduler(spec: RunSpec) -> Iterator[Finding]:
    rundir = launcher.rundir_of(spec)
    launcher.request_of(spec, rundir, 1)
    yield Finding("request", "ok", f"scheduler={spec.scheduler.name} accepts the job")
    for remark in backend(spec.scheduler.name).examine(launcher.job_of(spec, rundir, 1)):
        yield Finding("cluster", "warning", remark)
    if not backend(spec.scheduler.name).here:
        yield Finding("cluster", "ok", "it answers, you have the rights of all verbs, and it admits the job")


_MACHINE: tuple[tuple[str, Callable[[], Iterator[Finding]]], ...] = (
    ("Python", _python),
    ("packages", _packages),
    ("devices", _devices),
    ("processes", _processes),
    ("network", _network),
    ("state directory", _state),
)
_EXPERIMENT: tuple[tuple[str, Callable[[RunSpec], Iterator[Finding]]], ...] = (
    ("tokenizer", _back_ends),
    ("lanes", _lanes),
    ("run directory", _run_directory),
    ("scheduler", _scheduler),
)
