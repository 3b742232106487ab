"""``verify``: what was compared is said, also where there was nothing to compare."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.launch.written import Written
from zephon.launch.cli.main import main
from zephon.run.ledger import Ledger, sequence_digest, step_digest


def train(written: Written, steps: range, **by: int) -> None:
    with Ledger(written.rundir.path("ledger.jsonl")) as ledger:
        for step in steps:
            digest, lanes = step_digest([sequence_digest(np.full(4, step))], 1)
            ledger.append(step=step, digest=digest, lanes=lanes, loss=1.0, **by)


def test_of_a_run_that_trained_nothing_twice_there_is_nothing_to_compare(
    written: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    train(written, range(5))
    assert main(["verify", "toy", f"runs={Path(written.rundir.root).parent}"]) == 0
    shown = capsys.readouterr().out
    assert "none of 5 steps was trained more than once: there was nothing to compare" in shown
    assert "zephon verify toy OTHER" in shown


def test_steps_that_were_trained_more_than_once_are_counted_once(written: Written, capsys: pytest.CaptureFixture[str]) -> None:
    for steps in (range(5), range(3, 8), range(4, 8)):
        train(written, steps)
    assert main(["verify", "toy", f"runs={Path(written.rundir.root).parent}"]) == 0
    shown = capsys.readouterr().out
    assert "5 of 8 steps were trained more than once: the same global batch each time" in shown
    assert "OTHER" not in shown


def test_two_attempts_that_wrote_at_once_are_a_disagreement_also_where_all_digests_agree(
    written: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    for attempt, steps in ((1, range(5)), (2, range(5, 8)), (1, range(5, 6)), (2, range(8, 10))):
        train(written, steps, attempt=attempt, generation=attempt)
    assert main(["verify", "toy", f"runs={Path(written.rundir.root).parent}"]) == 2
    assert "two wrote at once: step 5 is by attempt 1, generation 1" in capsys.readouterr().out
