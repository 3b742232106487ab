"""``diff RUN OTHER``: what differs between the data of two runs, and the first step whose global batch differs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from rich.console import Console

from zephon.errors import ConfigError
from zephon.exits import Exit
from zephon.launch.cli.arguments import Arguments
from zephon.launch.cli.plan import difference_table
from zephon.launch.cli.views import run_of
from zephon.launch.contract import Difference, between
from zephon.launch.status import find_run
from zephon.run import ledger
from zephon.run.contract_file import read_contract


def diff(arguments: Arguments, console: Console) -> int:
    """Prints both values of each field that defines the data; 2 where a field or a step differs, 0 where none does."""
    if len(arguments.names) < 2:
        raise ConfigError(
            "zephon diff takes two runs", follows="there is nothing to compare", remedy="name both: zephon diff RUN OTHER"
        )
    first, second = run_of(arguments), find_run(arguments.names[1], arguments.runs)
    fields = between(read_contract(first), read_contract(second))
    comparison = ledger.compare(first.url, second.url) if all(map(ledger.has_ledger, (first, second))) else None
    step = None if comparison is None else comparison.first
    if arguments.json:
        plain = [dataclasses.asdict(difference) for difference in fields]
        print(json.dumps({"fields": plain, "step": step, "compared": 0 if comparison is None else comparison.steps}))
    else:
        _print(fields, comparison, console)
    return Exit.DISAGREES if fields or step is not None else Exit.DONE


def _print(fields: Sequence[Difference], comparison: ledger.Comparison | None, console: Console) -> None:
    if fields:
        console.print(difference_table(fields))
    else:
        console.print("no field that defines the data differs", highlight=False)
    if comparison is None:
        console.print("no step was compared: one of the runs has no ledger yet", highlight=False)
    else:
        console.print(comparison.sentence, markup=False, highlight=False)
