"""``verify RUN [OTHER]``: the proof. Ledgers are compared step by step; the first difference names step and lane.

Of one run alone only steps that were trained twice can be compared; where there is none, that is said. Each ledger is also read
for two memberships that wrote at the same time, which nothing allows.
"""

from __future__ import annotations

from rich.console import Console

from zephon.errors import ConfigError
from zephon.exits import Exit
from zephon.launch.cli.arguments import Arguments
from zephon.launch.cli.views import run_of
from zephon.launch.status import find_run
from zephon.run import ledger


def verify(arguments: Arguments, console: Console) -> int:
    """Compares one run's ledger with itself over its attempts, or with another run's; 2 at the first difference."""
    first = run_of(arguments)
    second = find_run(arguments.names[1], arguments.runs) if len(arguments.names) == 2 else None
    for rundir in [first, *([second] if second else [])]:
        if not ledger.has_ledger(rundir):
            raise ConfigError(
                f"{rundir.url} has no ledger yet", remedy="wait for its first step; `zephon status` shows how far it is"
            )
    comparison = ledger.compare(first.url, second.url if second else None)
    console.print(comparison.sentence, markup=False, highlight=False)
    if second is None and comparison.equal and not comparison.repeated:
        name = first.root.rstrip("/").rpartition("/")[2]
        console.print(f"compare it with another run: zephon verify {name} OTHER", markup=False, highlight=False)
    twice = [f"{run.url}: {found}" for run in (first, second) if run is not None and (found := ledger.two_at_once(run.url))]
    for sentence in twice:
        console.print(sentence, markup=False, highlight=False)
    return Exit.DONE if comparison.equal and not twice else Exit.DISAGREES
