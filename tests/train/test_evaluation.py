"""Held-out loss: one number, whatever the size."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.train.ranks import Meet, on_ranks
from tests.train.synthetic import SyntheticFeed, spec
from tests.train.test_worker import workers, workers_with_logs, write_run
from tests.train.training import job
from zephon.run.directory import RunDir
from zephon.run.metrics import series
from zephon.spec.experiment import RunSpec
from zephon.train.evaluation import Evaluation
from zephon.train.session import build
from zephon.train.step import TokenRows


def evaluate(meet: Meet, rank: int, some: RunSpec, folder: str) -> tuple[float, int]:
    the_job = job(some, folder)
    object.__setattr__(the_job, "held_out", lambda rank, size: SyntheticFeed(some, rank, size, last_step=3))
    membership = meet(parallel=some.trainer.parallel)
    session = build(the_job, membership)
    found = Evaluation(session)()
    session.close()
    membership.leave()
    return found.loss, found.tokens


def test_the_held_out_loss_is_the_same_at_every_size_and_bit_for_bit_when_canonical(tmp_path):
    exact = spec(trainer__reduction="canonical", lanes__allow="uneven")
    (reference,) = on_ranks(evaluate, 1, exact, str(tmp_path))
    for size in (2, 4):
        assert on_ranks(evaluate, size, exact, str(tmp_path)) == [reference] * size
    for size, parallel in ((3, "ddp"), (2, "fsdp")):
        found = on_ranks(evaluate, size, spec(trainer__parallel=parallel, lanes__allow="uneven"), str(tmp_path))
        assert {tokens for _, tokens in found} == {reference[1]}
        assert [loss for loss, _ in found] == [pytest.approx(reference[0], rel=1e-6)] * size


def two_rows(meet: Meet, rank: int, folder: str) -> float:
    """Row 0 has a loss of 3 over 1 token, row 1 of 7 over 9: in microbatches of one row."""
    some = spec(trainer__microbatch_size=1)
    session = build(job(some, folder), meet())
    given = iter([3.0, 7.0])
    session.sums = lambda rows: (None, next(given))
    evaluation = Evaluation(session)
    batch = next(SyntheticFeed(some, 0, 1).steps()).rows
    labels = batch.labels[:2].clone().fill_(-100)
    labels[0, :1], labels[1, :9] = 1, 1
    rows = TokenRows(input_ids=batch.input_ids[:2], labels=labels, positions=batch.positions[:2])
    evaluation._steps = [_Step(rows)]
    return evaluation().loss


class _Step:
    def __init__(self, rows: TokenRows) -> None:
        self.rows, self.tokens = rows, rows.tokens


def test_sums_and_tokens_are_added_up_before_the_one_division(tmp_path):
    (found,) = on_ranks(two_rows, 1, str(tmp_path))
    assert found == 1.0


def test_a_run_with_held_out_text_writes_its_loss_at_the_interval_and_at_the_end(tmp_path):
    (tmp_path / "held").mkdir()
    lines = [json.dumps({"text": f"number {i} is followed by {i + 1}. " * 20}) for i in range(300)]
    (tmp_path / "held" / "part.jsonl").write_text("\n".join(lines))
    data: dict[str, Any] = {"held": {"path": str(tmp_path / "held")}}
    write_run(tmp_path, trainer__steps=5, trainer__eval_every=2, trainer__eval_data=data, trainer__eval_tokens=1000)
    assert workers(tmp_path, 2) == [0, 0]
    found = {one["step"]: one.get("eval_loss") for one in series(RunDir(str(tmp_path)))}
    assert [step for step, loss in found.items() if loss is not None] == [1, 3, 4]
    assert found[4] < found[1]


def test_a_small_held_out_text_reaches_every_lane_and_one_that_is_too_small_is_refused(tmp_path):
    for name, lines in (("enough", 40), ("little", 3)):  # the first is less than one chunk of the usual length
        (tmp_path / name).mkdir()
        texts = [json.dumps({"text": f"number {i} is followed by {i + 1}. " * 4}) for i in range(lines)]
        (tmp_path / name / "part.jsonl").write_text("\n".join(texts))
        write_run(
            tmp_path / name, trainer__steps=1, trainer__eval_every=1, trainer__eval_data={"d": {"path": str(tmp_path / name)}}
        )
    assert workers(tmp_path / "enough", 1) == [0]
    ((status, log),) = workers_with_logs(tmp_path / "little", 1)
    assert status == 65
    assert "trainer.eval_data is not enough for one global batch: 8 sequences of 33 tokens, assigned to 4 lanes" in log


def test_an_interval_without_held_out_text_is_refused(tmp_path):
    write_run(tmp_path, trainer__eval_every=2)
    ((status, log),) = workers_with_logs(tmp_path, 1)
    assert status == 65
    assert "trainer.eval_every=2 without trainer.eval_data" in log
