"""Held-out loss: one number, whatever the size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.ranks import Meet, on_ranks
from tests.train.synthetic import SyntheticFeed, spec
from tests.train.test_worker import workers, workers_with_logs, write_run
from tests.train.training import job
from zephon.ops.tokenizers import load_tokenizer
from zephon.pipeline.experiment import held_out_pipeline
from zephon.run.checkpoints import newest_checkpoint
from zephon.run.directory import RunDir
from zephon.run.metrics import series
from zephon.run.specs import read_spec
from zephon.spec.experiment import RunSpec
from zephon.train.evaluation import Evaluation
from zephon.train.feed import PipelineFeed
from zephon.train.loop import train
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


@pytest.mark.slow
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
    session.losses = lambda rows: (None, torch.tensor([next(given)]))
    evaluation = Evaluation(session)
    batch = next(SyntheticFeed(some, 0, 1).steps()).rows
    labels = batch.labels[:2].clone().fill_(-100)
    labels[0, :1], labels[1, :9] = 1, 1
    rows = TokenRows(input_ids=batch.input_ids[:2], labels=labels, positions=batch.positions[:2])
    evaluation._rows, evaluation._tokens = [rows], rows.tokens
    return evaluation().loss


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


def held_out_text(folder: Path, documents: int) -> dict[str, Any]:
    folder.mkdir()
    texts = [f"document {i} " + "word " * (i % 7) for i in range(documents)]
    (folder / "part.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return {"held": {"path": str(folder)}}


def predicted(folder: str, some: RunSpec, size: int) -> tuple[int, int]:
    """(tokens, tokens to predict) of the held-out text, over all ranks."""
    tokens = labels = 0
    for rank in range(size):
        feed = PipelineFeed(held_out_pipeline(some, load_tokenizer("bytes"), dp_rank=rank, dp_size=size))
        for step in feed.steps():
            tokens += sum(step.by_dataset.values())
            labels += step.rows.tokens
        feed.close()
    return tokens, labels


@pytest.mark.parametrize("documents", [1, 3, 40, 301])
def test_every_row_of_the_held_out_text_counts_once_at_every_size(tmp_path, documents):
    data = held_out_text(tmp_path / "held", documents)
    write_run(tmp_path, trainer__eval_every=1, trainer__eval_data=data)
    some = read_spec(RunDir(str(tmp_path)), 1)
    every = sum(len(f"document {i} " + "word " * (i % 7)) + 1 for i in range(documents))  # bytes, and one that ends it
    whole = predicted(str(tmp_path), some, 1)
    assert whole[0] == every
    assert [predicted(str(tmp_path), some, size) for size in (2, 4)] == [whole, whole]


@pytest.mark.parametrize("documents", [1, 101])
def test_ranks_whose_held_out_text_ends_before_that_of_others_keep_in_step(tmp_path, documents):
    other = held_out_text(tmp_path / "other", documents + 1)
    data = {**held_out_text(tmp_path / "held", documents), "other": other["held"]}
    losses = set()
    for size in (1, 4 if documents == 1 else 2):
        folder = tmp_path / str(size)
        exact = {"trainer__reduction": "canonical", "trainer__steps": 1, "trainer__log_every": 1}
        write_run(folder, trainer__eval_every=1, trainer__eval_data=data, **exact)
        found = workers_with_logs(folder, size)
        assert [status for status, _ in found] == [0] * size, found
        assert "held-out text: all " in found[0][1]
        (line,) = series(RunDir(str(folder)))
        losses.add((line["eval_loss"], line["eval_tokens"], *sorted(line["eval_losses"].items())))
        assert line["eval_losses"].keys() == {"held", "other"}
    assert len(losses) == 1


def test_held_out_text_without_a_token_to_predict_is_refused_before_the_first_step(tmp_path):
    data = held_out_text(tmp_path / "held", 1)
    (tmp_path / "held" / "part.jsonl").write_text('{"text": ""}\n')
    write_run(tmp_path, trainer__eval_every=5, trainer__eval_data=data)
    ((status, log),) = workers_with_logs(tmp_path, 1)
    assert status == 65
    assert "trainer.eval_data has no token to predict" in log
    assert not (tmp_path / "ledger.jsonl").exists() or not (tmp_path / "ledger.jsonl").read_bytes()


def leave_in_evaluation(meet: Meet, rank: int, folder: str) -> tuple[bool, int, list[str]]:
    """Rank 1 is asked to leave while the evaluation after step 2 runs."""
    some = spec(trainer__eval_every=2, trainer__steps=10, checkpoint__every=100)
    the_job, log, asked = job(some, folder), [], []
    object.__setattr__(the_job, "held_out", lambda rank, size: SyntheticFeed(some, rank, size, last_step=3))
    object.__setattr__(the_job, "log", log.append)
    session = build(the_job, meet())
    losses = session.losses

    def ask(rows: TokenRows) -> Any:
        if session.step == 2 and rank == 1:
            asked.append(True)
        return losses(rows)

    session.losses = ask
    done = train(session, records=None, leaving=lambda: bool(asked))
    session.close()
    return done, session.step, log


def test_a_process_that_is_asked_to_leave_in_an_evaluation_saves_and_leaves_with_all_ranks(tmp_path):
    found = on_ranks(leave_in_evaluation, 2, str(tmp_path))
    assert [(done, step) for done, step, _ in found] == [(False, 2)] * 2
    assert "the evaluation after 2 steps is skipped: a process was asked to leave" in found[0][2]
    assert newest_checkpoint(RunDir(str(tmp_path))) == 2


def test_an_interval_without_held_out_text_is_refused(tmp_path):
    write_run(tmp_path, trainer__eval_every=2)
    ((status, log),) = workers_with_logs(tmp_path, 1)
    assert status == 65
    assert "trainer.eval_every=2 without trainer.eval_data" in log
