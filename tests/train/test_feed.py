"""What the loader tells the trainer about a step, and what of it reaches the run's files."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.train.test_worker import workers, write_run
from zephon.ledger import compare, read_ledger
from zephon.ops.tokenizers import load_tokenizer
from zephon.rundir import RunDir
from zephon.spec import RunSpec
from zephon.train.data import GlobalStep, agree, by_reason, report
from zephon.train.feed import PipelineFeed, pipeline
from zephon.train.metrics import series
from zephon.types import Address, LeftOut

STEPS = 6
LONG = 7  # every so many documents one is too long for a row


def write_documents(folder: Path) -> None:
    (folder / "data").mkdir()
    texts = ["x" * (80 if i % LONG == 0 else 9 + i % 13) for i in range(700)]
    (folder / "data" / "part.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def write_oversized(folder: Path, attempt: int = 1, **changes: object) -> None:
    """An experiment whose packing leaves out what is longer than a row."""
    changes = {"trainer__steps": STEPS, "pipeline__packing": "first_fit", "pipeline__flush_every_k_chunks": 2, **changes}
    write_run(folder, attempt, data__datasets={"mine": {"path": str(folder / "data")}}, data__chunk_bytes=1024, **changes)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("feed")
    write_documents(folder)
    write_oversized(folder, lanes__allow="uneven")
    return RunSpec.from_dict(RunDir(str(folder)).read_json("attempts", "0001", "spec.json"))


def steps_at(spec: RunSpec, size: int) -> list[GlobalStep]:
    """The steps of a run of ``size`` ranks, as rank 0 sees them."""
    tokenizer = load_tokenizer("bytes")
    feeds = [PipelineFeed(pipeline(spec, tokenizer, dp_rank=rank, dp_size=size)) for rank in range(size)]
    found: list[GlobalStep] = []
    try:
        for batches in zip(*(feed.steps() for feed in feeds), strict=True):
            step = agree(batches[0], [report(batch, drain=False, error=None) for batch in batches])
            assert step is not None
            found.append(step)
            if len(found) == STEPS:
                break
    finally:
        for feed in feeds:
            feed.close()
    return found


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_every_number_of_ranks_leaves_out_the_same_documents_in_the_same_steps(experiment, size):
    alone, together = steps_at(experiment, 1), steps_at(experiment, size)
    assert sum(some.count for step in alone for some in step.left_out) > 10
    assert [step.left_out for step in together] == [step.left_out for step in alone]


def test_microbatches_of_another_size_leave_out_the_same(experiment):
    other = replace(experiment, trainer=replace(experiment.trainer, microbatch_size=1))
    assert [step.left_out for step in steps_at(other, 1)] == [step.left_out for step in steps_at(experiment, 1)]


def test_parts_of_one_reason_become_one_with_the_first_eight_addresses():
    place = [Address("web", "a.jsonl", row) for row in range(12)]
    parts = [LeftOut("late", 1, (place[0],)), LeftOut("long", 9, tuple(place[1:9])), LeftOut("long", 2, tuple(place[10:]))]
    assert by_reason(parts[1:] + parts[:1]) == (parts[0], LeftOut("long", 11, tuple(place[1:9])))


def test_ledger_and_metrics_say_what_was_left_out_and_in_which_attempt_and_legs_still_verify(tmp_path):
    write_documents(tmp_path)
    write_oversized(tmp_path, 1, checkpoint__every=3, trainer__steps=5)
    write_oversized(tmp_path, 2, checkpoint__every=3, trainer__steps=8)
    assert workers(tmp_path, 2, attempt=1) == [0, 0]
    shutil.rmtree(tmp_path / "checkpoints" / "step-00000005")  # as if it had crashed on the way to it
    assert workers(tmp_path, 1, attempt=2) == [0]
    lines = list(read_ledger(str(tmp_path / "ledger.jsonl")))
    assert [(line.step, line.rest["attempt"]) for line in lines] == [(s, 1) for s in range(5)] + [(s, 2) for s in range(3, 8)]
    assert [line.rest.get("left_out") for line in lines[3:5]] == [line.rest.get("left_out") for line in lines[5:7]]
    named = [one for line in lines for one in line.rest.get("left_out", {}).items()]
    assert {reason for reason, _ in named} == {"pack_flat: longer than max_length"}
    assert all(row[:2] == ["mine", "part.jsonl"] for _, some in named for row in some["first"])
    counts = {line.step: sum(some["count"] for some in line.rest.get("left_out", {}).values()) for line in lines}
    assert sum(counts.values()) > 10
    curve = series(RunDir(str(tmp_path)))
    assert {line["step"]: line["left_out"] for line in curve} == counts
    assert [line["attempt"] for line in curve] == [1] * 3 + [2] * 5

    bare = tmp_path / "older.jsonl"  # as written before lines had these fields
    kept = ("step", "digest", "lanes", "world_size", "loss")
    written = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    bare.write_text("".join(json.dumps({name: line[name] for name in kept}) + "\n" for line in written))
    for one, other in [(bare, tmp_path), (tmp_path, bare), (tmp_path, None)]:
        found = compare(str(one), None if other is None else str(other))
        assert found.equal, found.sentence
        assert found.steps == 8
