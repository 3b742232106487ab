"""Killed workers: the run ends as if nothing had happened."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.train.ranks import Ranks
from tests.train.test_worker import curve, free_port, work, workers, write_run
from zephon.ledger import compare
from zephon.rundir import RunDir
from zephon.train import checkpoint

KILLS = 20
CHANGES = {
    "trainer__reduction": "canonical",
    "trainer__steps": 60,
    "checkpoint__every": 2,
    "checkpoint__keep_last": 2,
    "checkpoint__background": True,
}


def last_tensors(folder: Path) -> str:
    """The SHA-256 of the final checkpoint's tensors file."""
    run = RunDir(str(folder))
    return str(checkpoint.marker(run, 60)["files"]["__0_0.distcp"]["sha256"])


@pytest.mark.slow
def test_20_kills_of_any_rank_at_any_moment_leave_ledger_losses_and_weights_of_the_unbroken_run(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    write_run(whole, **CHANGES)
    assert workers(whole, 1) == [0]
    chance = random.Random(5)
    for attempt in range(1, KILLS + 1):
        write_run(broken, attempt, **CHANGES)
        size = chance.choice([1, 2, 4])
        with Ranks(work, size, str(broken), attempt, free_port(), {}, {}) as ranks:
            _wait_for_progress(broken, attempt, chance.uniform(0.0, 0.15))
            ranks.kill(chance.randrange(size))
            ranks.wait_all(timeout=60)
    write_run(broken, KILLS + 1, **CHANGES)
    assert workers(broken, 1, KILLS + 1) == [0]
    comparison = compare(str(broken), str(whole))
    assert comparison.equal, comparison.sentence
    assert comparison.steps == 60
    assert curve(broken) == curve(whole)
    assert last_tensors(broken) == last_tensors(whole)


def _wait_for_progress(folder: Path, attempt: int, longer: float) -> None:
    """Until the attempt has done a step, and a moment longer, so that the kill lands anywhere."""
    progress = folder / "attempts" / RunDir.attempt_name(attempt) / "progress.json"
    until = time.monotonic() + 60
    while not progress.exists():
        assert time.monotonic() < until, "no step in a minute"
        time.sleep(0.005)
    time.sleep(longer)
