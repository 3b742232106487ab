"""A mixture that is decided on during the run: recorded before it takes effect, and followed by whoever goes on."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from pathlib import Path

import pytest

from tests.train.ranks import Meet, RankFailed, on_ranks
from tests.train.test_worker import curve, free_port, work, workers, write_run
from zephon.run.decisions import Decision, read_decisions
from zephon.run.directory import RunDir
from zephon.run.ledger import compare
from zephon.run.metrics import series
from zephon.train.session import Session, Update
from zephon.train.step import GlobalStep

STEPS, EVERY, DELAY = 24, 6, 3
WORDS = {
    "global_batch_size": 16,
    "lanes__count": 8,
    "pipeline__context_length": 128,
    "pipeline__flush_every_k_chunks": 1,
    "pipeline__shuffle_buffer": 4,
    "data__chunk_bytes": 1024,
    "data__controller": {"rule": "odm", "every": EVERY, "delay": DELAY},
    "trainer__reduction": "canonical",
    "trainer__steps": STEPS,
    "optimizer__lr": 3e-2,
}


def write(folder: Path, attempt: int = 1, **changes: object) -> None:
    """An experiment over two datasets of short documents, of which one is easier to learn."""
    data = Path(str(folder)) / "data"
    if not data.exists():
        data.mkdir(parents=True)
        for name, texts in (
            ("easy", ["ab" * (20 + i % 30) for i in range(900)]),
            ("hard", [hashlib.sha256(b"%d" % i).hexdigest()[: 40 + i % 24] for i in range(900)]),
        ):
            (data / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    datasets = {name: {"path": str(data / f"{name}.jsonl"), "weight": 0.5} for name in ("easy", "hard")}
    write_run(folder, attempt, **{"data__datasets": datasets, **WORDS, **changes})


def decisions(folder: Path) -> tuple[Decision, ...]:
    return read_decisions(RunDir(str(folder))) or ()


def killed(meet: Meet, rank: int, folder: str, attempt: int, port: int, step: int) -> None:
    """A worker that is killed as soon as it has trained so many steps of the run."""
    update = Session.update

    def update_and_die(session: Session, batch: GlobalStep) -> Update:
        done = update(session, batch)
        if session.step == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    Session.update = update_and_die
    work(meet, rank, folder, attempt, port, {}, {})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("whole")
    write(folder)
    assert workers(folder, 1) == [0]
    return folder


def test_decisions_are_made_at_their_boundaries_and_the_mixture_follows_them(whole: Path) -> None:
    made = decisions(whole)
    assert [decision.step for decision in made] == [EVERY, 2 * EVERY, 3 * EVERY]
    assert all(decision.effective >= decision.step + DELAY for decision in made)
    assert made[0].weights["hard"] == 0.5, "as the paper has it: the first one is uniform"
    assert made[-1].weights["hard"] > made[1].weights["hard"] > 0.5
    shares = [line["shares"]["hard"] for line in series(RunDir(str(whole)))]
    begun = made[0].effective - 1
    assert abs(sum(shares[:begun]) / begun - 0.5) < 0.04


def test_a_run_killed_between_a_decision_and_its_effect_follows_it_at_another_size(whole: Path, tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(RankFailed):
        on_ranks(killed, 1, str(tmp_path), 1, free_port(), EVERY + 2, timeout=150)
    assert [decision.step for decision in decisions(tmp_path)] == [EVERY]
    write(tmp_path, 2)
    assert workers(tmp_path, 2, 2) == [0, 0]
    comparison = compare(str(tmp_path), str(whole))
    assert (comparison.equal, comparison.steps) == (True, STEPS), comparison.sentence
    assert decisions(tmp_path) == decisions(whole)


def test_another_run_follows_the_recorded_decisions_without_measuring(whole: Path, tmp_path: Path) -> None:
    changes = {"data__controller": {}, "data__decisions": str(whole), "trainer__steps": 14, "trainer__reduction": "default"}
    write(tmp_path, **changes, model__dim=32)
    assert workers(tmp_path, 1) == [0]
    comparison = compare(str(tmp_path), str(whole))
    assert (comparison.equal, comparison.steps) == (True, 14), comparison.sentence
    assert decisions(tmp_path) == decisions(whole), "its own directory has them: the other run may go"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_legs_at_4_2_and_8_ranks_decide_and_train_as_the_unbroken_run(whole: Path, tmp_path: Path) -> None:
    for attempt, size, leave in [(1, 4, {1: EVERY}), (2, 2, {0: 2 * EVERY + 1}), (3, 8, {})]:
        write(tmp_path, attempt)
        workers(tmp_path, size, attempt, leave)
    comparison = compare(str(tmp_path), str(whole))
    assert (comparison.equal, comparison.steps) == (True, STEPS), comparison.sentence
    assert decisions(tmp_path) == decisions(whole)
    assert curve(tmp_path) == curve(whole)
