"""``report RUN [OTHER ...]``: one HTML file with all that the runs have left, beside each other where there are several."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from zephon.launch.cli.arguments import Arguments
from zephon.launch.cli.views import run_of
from zephon.launch.status import find_run, status_of
from zephon.report.run import read_run
from zephon.report.stage import write_page
from zephon.run.directory import REPORT, RunDir

if TYPE_CHECKING:
    from rich.console import Console


def report(arguments: Arguments, console: Console) -> int:
    """Writes the page and prints where it is; 65 where a run or the plotting library is not there."""
    rundirs = [run_of(arguments), *(find_run(name, arguments.runs) for name in arguments.names[1:])]
    out = Path(arguments.out).expanduser() if arguments.out else _place(rundirs)
    records = []
    for rundir in rundirs:
        state = status_of(rundir)
        records.append(read_run(rundir, state=state.state + (f": {state.message}" if state.message else "")))
    write_page(records, out)
    console.print(str(out), markup=False, highlight=False, soft_wrap=True)
    if arguments.open:
        webbrowser.open(out.absolute().as_uri())
    return 0


def _place(rundirs: list[RunDir]) -> Path:
    """Of one run on this machine its directory; else the working directory: nothing is written to a store unasked."""
    if len(rundirs) == 1 and rundirs[0].local:
        return Path(rundirs[0].path(REPORT))
    names = [rundir.root.rstrip("/").rpartition("/")[2] for rundir in rundirs]
    return Path(f"report-{'-'.join(names[:3])}.html")
