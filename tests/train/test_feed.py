"""What the loader reports to the trainer about a step, and what of it the run's files record."""

from __future__ import annotations

import itertools
import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.train.test_worker import workers, workers_with_logs, write_run
from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.errors import ConfigError
from zephon.ops.tokenizers import load_tokenizer
from zephon.pipeline.experiment import pipeline
from zephon.run.data_end import read_data_end
from zephon.run.directory import RunDir
from zephon.run.ledger import compare, read_ledger
from zephon.run.metrics import series
from zephon.run.progress import read_progress
from zephon.run.specs import read_spec
from zephon.spec.experiment import ModelSpec, RunSpec
from zephon.train.feed import PipelineFeed
from zephon.train.model import Decoder, initialise
from zephon.train.step import GlobalStep, agree, rank_report
from zephon.types import Address, DropSummary, sum_by_reason

STEPS = 6
LONG = 7  # every so many documents one is too long for a row


SEQUENCES = "after the last full step (sequences)"  # which are no documents of their own


def write_documents(folder: Path, count: int = 700) -> None:
    (folder / "data").mkdir()
    texts = ["x" * (80 if i % LONG == 0 else 9 + i % 13) for i in range(count)]
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
    return read_spec(RunDir(str(folder)), 1)


def steps_at(spec: RunSpec, size: int) -> list[GlobalStep]:
    """The steps of a run of ``size`` ranks, as rank 0 sees them."""
    tokenizer = load_tokenizer("bytes")
    feeds = [PipelineFeed(pipeline(spec, tokenizer, dp_rank=rank, dp_size=size)) for rank in range(size)]
    found: list[GlobalStep] = []
    try:
        for batches in zip(*(feed.steps() for feed in feeds), strict=True):
            step = agree(batches[0], [rank_report(batch, drain=False, error=None) for batch in batches])
            assert step is not None
            found.append(step)
            if len(found) == STEPS:
                break
    finally:
        for feed in feeds:
            feed.close()
    return found


def test_the_same_words_are_the_same_data_in_python_and_in_an_experiment(tmp_path):
    """With nothing given but the words both must have: the documents, the tokenizer, the length, the division."""
    write_documents(tmp_path)
    path = str(tmp_path / "data")
    words = {"name": "same", "global_batch_size": 16, "trainer": {"steps": 4}, "pipeline": {"context_length": 32}}
    spec = RunSpec.from_dict({**words, "data": {"datasets": {"mine": {"path": path}}}, "tokenizer": {"id": "bytes"}})
    experiment = pipeline(spec, load_tokenizer("bytes"), dp_rank=0, dp_size=1)
    source = StaticMixtureWorkSource([Dataset.from_path("mine", path)], {"mine": 1}, exhausted_policy="repeat")
    python = (
        Pipeline(source)
        .options(lanes=8, global_batch_size=16)
        .tokenize(tokenizer_id="bytes", field="text")
        .pack_flat(context_length=32)
        .shuffle()
        .batch(microbatch_size=4)
    )
    assert python.fingerprint == experiment.fingerprint
    feeds = [PipelineFeed(experiment), PipelineFeed(python)]
    for one, other in itertools.islice(zip(*(feed.steps() for feed in feeds), strict=True), 3):
        assert one.digests == other.digests
        assert one.rows.input_ids.shape == other.rows.labels.shape == (16, 32)
    for feed in feeds:
        feed.close()


def test_datasets_may_have_their_text_in_different_fields(tmp_path):
    for name, field in (("a", "text"), ("b", "content"), ("c", "meta.body")):
        texts = [f"{name} number {i} " * 5 for i in range(200)]
        documents = [{"meta": {"body": text}} if field == "meta.body" else {field: text} for text in texts]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    fields = {"a": "text", "b": "content", "c": "meta.body"}
    datasets = {name: {"path": str(tmp_path / f"{name}.jsonl"), "field": field} for name, field in fields.items()}
    words = {"name": "fields", "global_batch_size": 8, "trainer": {"steps": 4}, "pipeline": {"context_length": 32}}
    spec = RunSpec.from_dict({**words, "data": {"datasets": datasets, "chunk_bytes": 1024}, "tokenizer": {"id": "bytes"}})
    built = pipeline(spec, load_tokenizer("bytes"), dp_rank=0, dp_size=1)
    tokens = sum((Counter(batch.tokens) for batch in itertools.islice(built, 40)), Counter())
    built.close()
    assert all(tokens[name] for name in fields)


@pytest.mark.parametrize("packing, shuffle_buffer", [("wrap", 0), ("best_fit", 64)])
def test_each_label_knows_its_dataset_and_every_size_counts_the_same(tmp_path, packing, shuffle_buffer):
    datasets = {}
    for name in "ab":
        (tmp_path / name).mkdir()
        lines = [json.dumps({"text": name * (5 + i % 17)}) + "\n" for i in range(900)]
        (tmp_path / name / "part.jsonl").write_text("".join(lines))
        datasets[name] = {"path": str(tmp_path / name)}
    packed = {"pipeline__packing": packing, "pipeline__shuffle_buffer": shuffle_buffer}
    write_run(tmp_path, data__datasets=datasets, data__chunk_bytes=1024, trainer__steps=STEPS, **packed)
    some = read_spec(RunDir(str(tmp_path)), 1)
    alone = steps_at(some, 1)
    for step in alone:
        labels, named = step.rows.labels, step.rows.datasets
        for index, name in enumerate("ab"):
            assert (named[labels == ord(name)] == index).all()
        assert sum(step.trained.values()) == step.tokens
        assert min(step.trained.values()) > 0
        assert step.packed.rows == some.global_batch_size
        tokens = some.global_batch_size * (some.pipeline.context_length + 1)
        assert step.packed.padding + sum(step.by_dataset.values()) == tokens
        assert step.packed.segments - step.packed.rows <= int((labels == -100).sum())
    counted = [(step.trained, step.packed) for step in alone]
    assert [(step.trained, step.packed) for step in steps_at(some, 2)] == counted


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_every_number_of_ranks_leaves_out_the_same_documents_in_the_same_steps(experiment, size):
    alone, together = steps_at(experiment, 1), steps_at(experiment, size)
    assert sum(some.count for step in alone for some in step.dropped) > 10
    assert [step.dropped for step in together] == [step.dropped for step in alone]


def test_microbatches_of_another_size_leave_out_the_same(experiment):
    other = replace(experiment, trainer=replace(experiment.trainer, microbatch_size=1))
    assert [step.dropped for step in steps_at(other, 1)] == [step.dropped for step in steps_at(experiment, 1)]


def test_the_trained_loss_of_packed_rows_is_that_of_their_documents_taken_one_by_one(experiment):
    (step, *_), model = steps_at(experiment, 1), Decoder(ModelSpec(dim=32, layers=2), load_tokenizer("bytes").vocab_size)
    initialise(model, seed=3, layers=2)
    rows = step.rows
    ids, begins = rows.input_ids.flatten(), (rows.positions.flatten() == 0).nonzero().flatten()
    edges = [*begins.tolist(), len(ids)]
    alone, tokens = torch.zeros(()), 0
    with torch.no_grad():
        together = model(rows.input_ids, rows.positions, rows.labels)[1].sum()
        for begin, end in itertools.pairwise(edges):
            document = ids[begin:end][None]
            if rows.labels.flatten()[begin] == -100:
                continue  # padding
            labels = torch.cat([document[:, 1:], torch.full((1, 1), -100)], dim=1)
            last = rows.labels.flatten()[end - 1]
            if end % rows.input_ids.shape[1] == 0:
                labels[0, -1] = last  # the row's last token is no input, only a label
            else:
                assert last == -100, "a document's last token has no label"
            alone += model(document, None, labels)[1].sum()
            tokens += int((labels != -100).sum())
    assert len(edges) > 12
    assert tokens == rows.tokens
    assert together.item() == pytest.approx(alone.item(), rel=1e-4)


def test_parts_of_one_reason_become_one_with_the_first_eight_addresses():
    place = [Address("web", "a.jsonl", row) for row in range(12)]
    parts = [
        DropSummary("late", 1, (place[0],)),
        DropSummary("long", 9, tuple(place[1:9])),
        DropSummary("long", 2, tuple(place[10:])),
    ]
    assert sum_by_reason(parts[1:] + parts[:1]) == (parts[0], DropSummary("long", 11, tuple(place[1:9])))


def write_some_bad(folder: Path, count: int = 700) -> set[int]:
    """Every thirtieth line is no document; the addresses of those, which are where they begin."""
    write_documents(folder, count)
    part = folder / "data" / "part.jsonl"
    lines = part.read_text().splitlines()
    lines = [f"{'not json' if i % 30 == 4 else line}\n" for i, line in enumerate(lines)]
    part.write_text("".join(lines))
    return {at for at, line in zip(itertools.accumulate(map(len, lines), initial=0), lines, strict=False) if "not" in line}


@pytest.mark.parametrize("where", ["for all", "for one dataset"])
def test_a_line_that_is_no_document_is_dropped_and_named_in_the_ledger_where_the_experiment_says_so(tmp_path, where):
    bad = write_some_bad(tmp_path)
    write_oversized(tmp_path, 1)
    (status, log), *_ = workers_with_logs(tmp_path, 1)
    assert status == 65, "without a word about it a bad line ends the run"
    assert "part.jsonl" in log
    shutil.rmtree(tmp_path / "checkpoints", ignore_errors=True)
    for attempt, size in [(2, 1), (3, 2)]:
        run = tmp_path / f"at-{size}"
        mine = {"path": str(tmp_path / "data")}
        said = {"data__on_error": "quarantine"} if where == "for all" else {}
        datasets = {"mine": mine if said else {**mine, "on_error": "quarantine"}}
        fields = {"trainer__steps": STEPS, "data__datasets": datasets, "data__chunk_bytes": 1024, **said}
        write_run(run, attempt, **fields)
        assert workers(run, size, attempt=attempt) == [0] * size
    alone, together = (list(read_ledger(str(tmp_path / f"at-{size}" / "ledger.jsonl"))) for size in (1, 2))
    named = {row[2] for line in alone for some in line.rest.get("dropped", {}).values() for row in some["first"]}
    assert named
    assert named <= bad, "only bad lines are left out"
    assert [line.rest.get("dropped") for line in together] == [line.rest.get("dropped") for line in alone]
    assert compare(str(tmp_path / "at-1"), str(tmp_path / "at-2")).equal


def test_more_bad_lines_than_the_budget_allows_end_the_run(tmp_path):
    write_some_bad(tmp_path)
    write_oversized(tmp_path, 1, data__on_error="quarantine", data__quarantine_budget=0)
    (status, log), *_ = workers_with_logs(tmp_path, 1)
    assert status == 65
    assert "more than quarantine_budget=0" in log


def test_a_checkpoint_from_before_on_error_existed_goes_on_and_not_with_another_choice(tmp_path):
    write_documents(tmp_path)
    write_oversized(tmp_path, 1)
    assert workers(tmp_path, 1) == [0]
    meta = json.loads((tmp_path / "checkpoints" / "step-00000006" / "meta.json").read_text())
    assert not any("on_error" in name for name in meta["meta"]["pinned"]), "as older versions wrote it"
    write_oversized(tmp_path, 2, trainer__steps=STEPS + 1)
    assert workers(tmp_path, 1, attempt=2) == [0]
    write_oversized(tmp_path, 3, trainer__steps=STEPS + 2, data__on_error="quarantine")
    (status, log), *_ = workers_with_logs(tmp_path, 1, attempt=3)
    assert status == 65
    assert "data.on_error was 'raise' when this checkpoint was made and is 'quarantine' now" in log


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Runs at 1, 2 and 4 ranks over data that ends long before the last step, with bad lines behind the last whole step."""
    folder = tmp_path_factory.mktemp("ended")
    bad = write_some_bad(folder, 580)  # chunks for four lanes and one more, so that one lane goes on behind the others' end
    found = {}
    for size in (1, 2, 4):
        run = folder / f"at-{size}"
        fields = {"trainer__steps": 1000, "data__chunk_bytes": 1024, "data__exhausted": "stop", "data__on_error": "quarantine"}
        fields["pipeline__shuffle_buffer"] = 0
        write_run(run, data__datasets={"mine": {"path": str(folder / "data")}}, **fields)
        assert workers(run, size) == [0] * size
        found[size] = (list(read_ledger(str(run / "ledger.jsonl"))), read_data_end(RunDir(str(run))))
    return bad, found


@pytest.mark.slow
def test_data_that_ends_before_the_last_step_ends_the_run_at_the_same_step_at_every_size(ended):
    _, found = ended
    (ledger, end) = found[1]
    assert 5 < len(ledger) == end.step < end.steps == 1000
    for others, other in found.values():
        assert [line.digest for line in others] == [line.digest for line in ledger]
        assert other == end


@pytest.mark.slow
def test_data_that_is_not_enough_for_one_step_is_an_error_on_every_rank_and_no_run_that_is_done(tmp_path):
    write_documents(tmp_path, 3)
    write_run(tmp_path, data__datasets={"mine": {"path": str(tmp_path / "data")}}, data__exhausted="stop")
    for status, log in workers_with_logs(tmp_path, 2):
        assert status == 65
        assert "the data ends before the first step: it is not enough for" in log
        assert "fix: use smaller chunks (data.chunk_bytes), fewer lanes, more data" in log
    assert not (tmp_path / "data_end.json").exists()


@pytest.mark.slow
def test_what_is_dropped_after_the_last_step_is_on_record_so_that_every_bad_line_is_named_once_at_every_size(ended):
    bad, found = ended
    for ledger, end in found.values():
        assert end.dropped, "the case is no case"
        named = [some for line in ledger for some in line.rest.get("dropped", {}).values()]
        named += [some for reason, some in end.dropped.items() if reason != SEQUENCES]
        assert sum(some["count"] for some in named) == len(bad)
        rows = [row[2] for some in named for row in some["first"]]
        assert len(rows) == len(set(rows))
        assert set(rows) == bad


def test_from_every_step_on_what_is_reported_and_what_is_dropped_at_the_end_are_all_bad_lines(tmp_path):
    bad = write_some_bad(tmp_path, 580)
    fields = {"data__chunk_bytes": 1024, "data__exhausted": "stop", "data__on_error": "quarantine"}
    write_run(tmp_path, data__datasets={"mine": {"path": str(tmp_path / "data")}}, **fields)
    spec = read_spec(RunDir(str(tmp_path)), 1)
    tokenizer = load_tokenizer("bytes")
    feed = PipelineFeed(pipeline(spec, tokenizer, dp_rank=0, dp_size=1))
    steps = list(feed.steps())
    for done in range(0, len(steps) + 1, 7):
        reported = [address.row for step in steps[:done] for some in step.dropped for address in some.addresses]
        for size in (1, 2):
            ranks = [PipelineFeed(pipeline(spec, tokenizer, dp_rank=rank, dp_size=size)) for rank in range(size)]
            state = steps[done - 1].state if done else None
            at_end = [pair for rank in ranks for pair in rank.dropped_at_end(state)]
            documents = sum(some.count for _, some in at_end if some.reason != SEQUENCES)
            assert documents == len(bad) - len(reported), (done, size)
            assert {row for _, some in at_end for row in (a.row for a in some.addresses)} | set(reported) <= bad


def test_a_stream_that_never_ends_has_no_end_to_drop_anything_at(experiment):
    feed = PipelineFeed(pipeline(experiment, load_tokenizer("bytes"), dp_rank=0, dp_size=1))
    with pytest.raises(ConfigError, match="never ends"):
        feed.dropped_at_end(None)


def test_ledger_and_metrics_say_what_was_dropped_and_in_which_attempt_and_legs_still_verify(tmp_path):
    write_documents(tmp_path)
    write_oversized(tmp_path, 1, checkpoint__every=3, trainer__steps=5)
    write_oversized(tmp_path, 2, checkpoint__every=3, trainer__steps=8)
    assert workers(tmp_path, 2, attempt=1) == [0, 0]
    shutil.rmtree(tmp_path / "checkpoints" / "step-00000005")  # as if it had crashed on the way to it
    assert workers(tmp_path, 1, attempt=2) == [0]
    lines = list(read_ledger(str(tmp_path / "ledger.jsonl")))
    assert [(line.step, line.rest["attempt"]) for line in lines] == [(s, 1) for s in range(5)] + [(s, 2) for s in range(3, 8)]
    assert [line.rest.get("dropped") for line in lines[3:5]] == [line.rest.get("dropped") for line in lines[5:7]]
    named = [one for line in lines for one in line.rest.get("dropped", {}).items()]
    assert {reason for reason, _ in named} == {"pack_flat: longer than max_length"}
    assert all(row[:2] == ["mine", "part.jsonl"] for _, some in named for row in some["first"])
    counts = {line.step: sum(some["count"] for some in line.rest.get("dropped", {}).values()) for line in lines}
    assert sum(counts.values()) > 10
    curve = series(RunDir(str(tmp_path)))
    assert {line["step"]: line["dropped"] for line in curve} == counts
    assert [line["attempt"] for line in curve] == [1] * 3 + [2] * 5
    progress = read_progress(RunDir(str(tmp_path)), 2)  # of the whole run, also what the attempt before dropped
    assert progress is not None
    (so_far,) = progress.dropped.values()
    assert so_far["documents"] == sum(counts.values())
    assert so_far["tokens"] > 32 * so_far["documents"]
    assert progress.tokens == curve[-1]["total_tokens"]

    bare = tmp_path / "older.jsonl"  # as written before lines had these fields
    kept = ("step", "digest", "lanes", "world_size", "loss")
    written = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    bare.write_text("".join(json.dumps({name: line[name] for name in kept}) + "\n" for line in written))
    for one, other in [(bare, tmp_path), (tmp_path, bare), (tmp_path, None)]:
        found = compare(str(one), None if other is None else str(other))
        assert found.equal, found.sentence
        assert found.steps == 8
