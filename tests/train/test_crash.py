"""Killed workers: the run ends as if nothing had happened."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.train.ranks import Ranks
from tests.train.test_worker import curve, free_port, work, workers, write_run
from zephon.run.checkpoints import complete_steps, read_marker
from zephon.run.directory import RunDir
from zephon.run.ledger import compare

KILLS, DRAINS = 20, 8
STEPS = 400  # more than all killed attempts together can train
CHANGES = {
    "trainer__reduction": "canonical",
    "trainer__steps": STEPS,
    "checkpoint__every": 2,
    "checkpoint__keep_last": 2,
    "checkpoint__background": True,
}


def last_tensors(folder: Path) -> str:
    """The SHA-256 of the final checkpoint's tensors file."""
    run = RunDir(str(folder))
    marker = read_marker(run, STEPS)
    assert marker is not None
    return marker.files["__0_0.distcp"].sha256


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_20_kills_of_any_rank_at_any_moment_leave_ledger_losses_and_weights_of_the_unbroken_run(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    write_run(whole, **CHANGES)
    assert workers(whole, 1) == [0]
    chance = random.Random(5)
    for attempt in range(1, KILLS + 1):
        write_run(broken, attempt, **CHANGES)
        size = chance.choice([1, 2, 4])
        with Ranks(work, size, str(broken), attempt, free_port(), {}, {}) as ranks:
            _wait_for_steps(broken, chance.randint(1, 6))
            time.sleep(chance.uniform(0.0, 0.02))
            ranks.kill(chance.randrange(size))
            ranks.wait_all(timeout=60)
    write_run(broken, KILLS + 1, **CHANGES)
    assert workers(broken, 1, KILLS + 1) == [0]
    comparison = compare(str(broken), str(whole))
    assert comparison.equal, comparison.sentence
    assert comparison.steps == STEPS
    assert curve(broken) == curve(whole)
    assert last_tensors(broken) == last_tensors(whole)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sigterm_to_one_rank_at_any_moment_makes_all_save_the_same_step_and_leave(tmp_path):
    write_run(tmp_path / "whole", **CHANGES)
    assert workers(tmp_path / "whole", 1) == [0]
    chance, broken = random.Random(6), tmp_path / "broken"
    for attempt in range(1, DRAINS + 1):
        write_run(broken, attempt, **{**CHANGES, "checkpoint__every": 1000})
        with Ranks(work, 2, str(broken), attempt, free_port(), {}, {}) as ranks:
            _wait_for_steps(broken, chance.randint(1, 3))
            time.sleep(chance.uniform(0.0, 0.02))
            ranks.terminate(1)
            statuses = [status for status, _ in ranks.results(timeout=60)]
        done = _lines(broken / "ledger.jsonl")
        assert (statuses, complete_steps(RunDir(str(broken)))[-1]) == ([75, 143], done)
    write_run(broken, DRAINS + 1, **CHANGES)
    assert workers(broken, 1, DRAINS + 1) == [0]
    assert _lines(broken / "ledger.jsonl") == STEPS
    assert compare(str(broken), str(tmp_path / "whole")).steps == STEPS
    assert compare(str(broken), str(tmp_path / "whole")).equal


def _wait_for_steps(folder: Path, more: int) -> None:
    """Until the ledger has some more lines."""
    path = folder / "ledger.jsonl"
    before = _lines(path)
    until = time.monotonic() + 60
    while _lines(path) < before + more:
        assert time.monotonic() < until, "no step in a minute"
        time.sleep(0.002)


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
