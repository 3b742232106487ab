"""``verify RUN [OTHER]``: the proof. Ledgers are compared step by step; the first difference names step and lane."""

from __future__ import annotations

from rich.console import Console

from zephon.errors import ConfigError
from zephon.exits import Exit
from zephon.run.directory import RunDir


def compare_runs(first: RunDir, second: RunDir | None, console: Console) -> int:
    """0 when every step both ledgers hold is equal, 2 at the first difference."""
    from zephon.run import ledger

    for rundir in [first, *([second] if second else [])]:
        if not rundir.exists("ledger.jsonl"):
            raise ConfigError(
                f"{rundir.url} has no ledger yet",
                follows="there is nothing to compare",
                remedy="wait for its first step; `zephon status` shows where it stands",
            )
    result = ledger.compare(first.url, second.url if second else None)
    console.print(result.sentence, markup=False, highlight=False)
    return Exit.DONE if result.equal else Exit.DISAGREES
