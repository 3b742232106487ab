"""Ten fixed pipelines and the digests they had when they were written down: another digest is another stream for everybody.

A difference means that runs cannot be resumed across this change. If that is meant, say so in the commit and write the
files anew: python -m tests.test_golden
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.laws import Job
from tests.ops.recipes import PIPELINES, recipe

GOLDEN = Path(__file__).parent / "golden"
NAMES = {
    "wrap": "wrap",
    "wrap_shuffle": "wrap, streaming shuffle",
    "wrap_warmup": "wrap, warm-up shuffle",
    "wrap_groups": "wrap by group, shuffle",
    "first_fit": "first_fit, few bins, limits",
    "best_fit": "best_fit by dataset, shuffle",
    "best_fit_wrap": "best_fit_wrap",
    "chat": "chat by tags, wrap",
    "mixture": "mixture ensured, then wrap and shuffle",
    "stateful": "pairs, then wrap",
}
STEPS = 12


def digests(name: str) -> dict[str, Any]:
    """SHA-256 of each step's rows in slot order, and the lanes' cursors behind them."""
    with Job(recipe(PIPELINES[NAMES[name]]), addresses=False) as job:
        steps = [hashlib.sha256("".join(step).encode()).hexdigest() for step in job.steps(STEPS)]
        cursors = {str(lane): cursor.hex() for state in job.states() for lane, cursor in state["lanes"].items()}
    return {"pipeline": NAMES[name], "steps": steps, "cursors": cursors}


@pytest.mark.parametrize("name", NAMES)
def test_the_stream_is_the_one_that_was_written_down(name: str) -> None:
    assert digests(name) == json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))


if __name__ == "__main__":
    for key in NAMES:
        (GOLDEN / f"{key}.json").write_text(json.dumps(digests(key), indent=1) + "\n", "utf-8")
