"""Documents that fail: addressed, set aside once and for all, within a budget; and instructions to leave documents out."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.laws import Job, Recipe, assert_restarts, assert_same_data, reference
from tests.ops.recipes import GLOBAL_BATCH, PIPELINES, fails_at_sevens, recipe, text
from zephon import Dataset, InMemoryShard, Pipeline, SampleBatch, StaticMixtureWorkSource
from zephon.errors import ConfigError, DataError, StateError

BUILD = PIPELINES["wrap, streaming shuffle"]


def small(fn: Any, *, rows: int = 40, **options: Any) -> Pipeline:
    """One lane, ids 0 to 39 in order, a chunk of five documents at a time."""
    dataset = Dataset.from_dict("d", {"s": InMemoryShard([{"text": f"{i:08d}", "id": i} for i in range(rows)])})
    source = StaticMixtureWorkSource([dataset], shuffle_within_shard=False, shuffle_shards=False, chunk_bytes=80)
    fixed: dict[str, Any] = {"global_batch_size": 1, "runner": "inline", "prefetch_batches": 0, "flush_every_k_chunks": 2}
    return Pipeline(source).options(**{**fixed, **options}).map_transform(fn, version="1").shuffle(3).batch(1)


def ids(batches: list[SampleBatch]) -> list[int]:
    return [batch.payload["id"][0] for batch in batches]


class Failing:
    """Fails for some ids. Without any it is the same service in better health."""

    def __init__(self, *bad: int) -> None:
        self.bad = set(bad)

    def __call__(self, document: dict[str, Any]) -> dict[str, Any]:
        if document["id"] in self.bad:
            raise OSError("server busy")
        return document


def test_an_exception_carries_the_address_and_the_lane() -> None:
    with pytest.raises(ValueError, match="document 0 cannot be used") as caught:
        list(small(fails_at_sevens))
    notes = "\n".join(caught.value.__notes__)
    assert "dataset 'd', shard 's', row 0" in notes
    assert "lane 0, position 0" in notes


def test_the_address_comes_with_threads_too() -> None:
    with pytest.raises(ValueError, match="document 0 cannot be used") as caught:
        list(small(fails_at_sevens, runner="threads", max_workers=2))
    assert "row 0" in "\n".join(caught.value.__notes__)


def test_a_quarantined_document_is_named_once_and_everything_else_is_delivered() -> None:
    batches = list(small(fails_at_sevens, on_error="quarantine"))
    assert sorted(ids(batches)) == [i for i in range(40) if i % 7]
    named = [left for batch in batches for left in batch.dropped]
    assert sorted(a.row for left in named for a in left.addresses) == [0, 7, 14, 21, 28, 35]
    assert all("ValueError: document" in left.reason for left in named)


def test_what_failed_once_is_left_out_again_after_every_restart() -> None:
    """After the first batch the function works for all documents; the stream must not notice."""
    whole = list(small(Failing(3, 4), on_error="quarantine"))
    state = None
    got: list[SampleBatch] = []
    while True:
        pipeline = small(Failing(3, 4) if state is None else Failing(), on_error="quarantine")
        if state is not None:
            pipeline.restore(state)
        batch = next(iter(pipeline), None)
        if batch is None:
            break
        got.append(batch)
        state = pipeline.checkpoint()
        assert len(state["lanes"][0]) < 128
    assert ids(got) == ids(whole)
    assert sum(left.count for batch in got for left in batch.dropped if "server busy" in left.reason) == 2


def test_a_document_that_fails_only_after_the_restart_stops_the_run() -> None:
    pipeline = small(Failing(), on_error="quarantine")
    batches = iter(pipeline)
    for _ in range(4):
        next(batches)
    state = pipeline.checkpoint()
    with pytest.raises(DataError, match="used before the restart fails now") as caught:
        next(iter(small(Failing(1), on_error="quarantine").restore(state)))
    assert "row 1" in str(caught.value)


def test_the_budget_ends_the_run_with_the_last_failure() -> None:
    with pytest.raises(DataError, match="quarantine_budget=2") as caught:
        list(small(fails_at_sevens, on_error="quarantine", quarantine_budget=2))
    assert "raise the budget" in str(caught.value)


def test_an_op_may_quarantine_where_its_dataset_does_not_and_the_other_way_round() -> None:
    dataset = Dataset.from_dict("d", {"s": InMemoryShard([{"text": "x", "id": i} for i in range(1, 9)])})

    def build(op: str | None, option: Any) -> Pipeline:
        pipeline = Pipeline(StaticMixtureWorkSource([dataset], shuffle_within_shard=False)).options(
            runner="inline", on_error=option
        )
        return pipeline.map_transform(fails_at_sevens, on_error=op).batch(1)

    assert len(list(build("quarantine", "raise"))) == 7
    assert len(list(build(None, {"d": "quarantine"}))) == 7
    with pytest.raises(ValueError, match="document 7"):
        list(build("raise", "quarantine"))
    with pytest.raises(ConfigError, match="on_error names 'e'"):
        list(build(None, {"e": "quarantine"}))


def test_a_line_that_is_not_json_goes_into_quarantine_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text":"aa"}\n{"text":"b"}{"text":"c"}\n[1]\n{"text":"dd"}\n{"no":1}\n')

    def pipeline(choice: str) -> Pipeline:
        source = StaticMixtureWorkSource([Dataset.from_path("d", str(tmp_path))], shuffle_within_shard=False)
        made = Pipeline(source).options(runner="inline", on_error=choice)
        return made.tokenize(tokenizer_id="bytes", field="text").batch(1)

    batches = list(pipeline("quarantine"))
    assert [bytes(b.payload["input_ids"][0][:-1].tolist()) for b in batches] == [b"aa", b"dd"]
    assert sum(left.count for batch in batches for left in batch.dropped) == 3
    with pytest.raises(DataError, match=r"line at byte 14 .*is not one JSON object"):
        list(pipeline("raise"))


def test_a_shard_most_of_whose_documents_fail_ends_the_run_whatever_the_budget(tmp_path: Path) -> None:
    good = "".join(json.dumps({"text": f"document {i}"}) + "\n" for i in range(20))
    (tmp_path / "good.jsonl").write_text(good)
    (tmp_path / "other.jsonl").write_text(good[:100] + "\n" + "no json\n" * 30)
    source = StaticMixtureWorkSource([Dataset.from_path("d", str(tmp_path))])
    pipeline = Pipeline(source).options(on_error="quarantine", quarantine_budget=1000, runner="inline")
    pipeline.tokenize(tokenizer_id="bytes", field="text").pack_flat(16, algorithm="wrap").batch(1)
    with pytest.raises(DataError, match="31 of 35 documents of one shard failed") as caught:
        list(pipeline)
    assert any("other.jsonl" in note for note in caught.value.__notes__)


def test_unreadable_lines_stay_out_at_every_restart_and_size(tmp_path: Path) -> None:
    lines = ["{broken" if i % 9 == 4 else json.dumps({"text": f"document {i}", "id": i}) for i in range(120)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    dataset = Dataset.from_path("d", str(tmp_path))

    def make(dp_degree: int = 1, dp_group_id: int = 0, microbatch_size: int = 1, **options: Any) -> Pipeline:
        source = StaticMixtureWorkSource([dataset], shuffle_within_shard=False, exhausted_policy="repeat", chunk_bytes=150)
        fixed = {"canonical_replicas": 4, "flush_every_k_chunks": 2, "on_error": "quarantine", "runner": "inline"}
        pipeline = Pipeline(source).options(**{**fixed, "dp_degree": dp_degree, "dp_group_id": dp_group_id, **options})
        pipeline.tokenize(tokenizer_id="bytes", field="text").pack_flat(40, algorithm="wrap").shuffle(3)
        return pipeline.batch(microbatch_size)

    expected = reference(make, 8)
    assert_restarts(make, expected, sizes=(1, 4, 2))


def test_a_bad_document_behind_an_accumulator_is_named_too() -> None:
    dataset = Dataset.from_dict("d", {"s": InMemoryShard([{"text": "a"}, {"text": 5}])})
    source = StaticMixtureWorkSource([dataset], shuffle_within_shard=False, shuffle_shards=False)
    pipeline = Pipeline(source).options(runner="inline").shuffle(4).tokenize(tokenizer_id="bytes", field="text").batch(1)
    with pytest.raises(DataError, match="not text") as caught:
        list(pipeline)
    assert "dataset 'd', shard 's', row 1, lane 0" in "".join(caught.value.__notes__)


def test_quarantine_behind_an_accumulator_is_refused() -> None:
    with pytest.raises(ConfigError, match="comes after shuffle"):
        list(recipe(lambda p: text(p.shuffle(3).map_transform(fails_at_sevens, on_error="quarantine")))())


# ---- skip rules


def skipping(steps: range, at: int, lanes_allow: str = "uneven") -> Recipe:
    """Not a real recipe option: the instruction is given when the pipeline is new and nothing has been delivered."""

    def make(**options: Any) -> Pipeline:
        pipeline = recipe(BUILD)(**{"lanes_allow": lanes_allow, **options})
        return pipeline.skip(steps=steps) if at == 0 else pipeline

    return make


def test_skipped_steps_are_passed_over_and_the_steps_behind_take_their_place() -> None:
    plain = reference(recipe(BUILD), 12)
    with Job(skipping(range(2, 5), 0)) as job:
        assert job.steps(8) == [*plain[:2], *plain[5:11]]


def test_a_skip_given_in_the_middle_of_a_run_survives_later_resumes_at_other_sizes() -> None:
    plain = reference(recipe(BUILD), 12)
    with Job(recipe(BUILD), 2) as job:
        got = job.steps(2)
        states = job.states()
    with Job(recipe(BUILD), 4, states=states) as job:
        for pipeline in job.pipelines:
            pipeline.skip(steps=(4, 6))
        job.iterators = [pipeline.steps() for pipeline in job.pipelines]
        got += job.steps(1)
        states = job.states()
    for dp in (1, 8, 2, 4):
        with Job(recipe(BUILD), dp, states=states) as job:
            got += job.steps(1)
            states = job.states()
    assert got == [*plain[:4], *plain[6:9]]
    assert states[0]["step"] == 7


def test_a_skip_that_one_rank_was_not_given_is_found_at_the_next_restore() -> None:
    with Job(recipe(BUILD), 2) as job:
        job.steps(1)
        job.pipelines[1].skip(steps=(4, 6))
        states = job.states()
    with pytest.raises(StateError, match="lanes 0 and 4 have different skip rules"):
        recipe(BUILD)().restore(states)


def test_steps_that_have_begun_cannot_be_skipped() -> None:
    pipeline = recipe(BUILD)()
    steps = pipeline.steps()
    list(next(steps))
    with pytest.raises(StateError, match="use steps from 1 on"):
        pipeline.skip(steps=range(3))
    pipeline.skip(steps=range(1, 3))


def test_documents_are_left_out_from_here_on_and_the_past_stays() -> None:
    plain = ids(list(small(Failing())))
    bad = [("d", "s", i) for i in (1, 30, 35)]
    pipeline = small(Failing())
    batches = iter(pipeline)
    got = [next(batches) for _ in range(6)]
    pipeline.skip(documents=bad)
    got += list(pipeline)
    assert ids(got)[:6] == plain[:6]
    assert sorted(ids(got)) == [i for i in range(40) if i not in (30, 35)]  # 1 had been read before
    assert sorted(address.row for b in got for left in b.dropped for address in left.addresses) == [30, 35]


@pytest.mark.parametrize("before", [0, 1, 3, 7, 8, 9, 15])
def test_leaving_documents_out_is_followed_by_every_later_resume(before: int) -> None:
    bad = [("d", "s", i) for i in range(40) if i % 4 == 1]

    def resumed(every: int) -> list[int]:
        state: Any = None
        got: list[int] = []
        given = False
        while True:
            pipeline = small(Failing())
            if state is not None:
                pipeline.restore(state)
            if len(got) == before and not given:
                pipeline.skip(documents=bad)
                given = True
            batches = iter(pipeline)
            wanted = min(every, before - len(got)) if len(got) < before else every
            taken = list(itertools.islice(batches, wanted))
            got += ids(taken)
            state = pipeline.checkpoint()
            pipeline.close()
            if len(taken) < wanted:
                return got

    assert resumed(1) == resumed(1000) == resumed(3)


def test_an_address_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="no shard 't'"):
        small(Failing()).skip(documents=[("d", "t", 0)])


def test_documents_left_out_keep_the_laws_at_every_size() -> None:
    def make(**options: Any) -> Pipeline:
        pipeline = recipe(PIPELINES["wrap by group, shuffle"])(**{"lanes_allow": "uneven", **options})
        return pipeline.skip(documents=[("a", "s0", 3), ("b", "s1", 20)])

    expected = reference(make, 5)
    assert_same_data(make, expected, sizes=(3, 16))
    plain = reference(recipe(PIPELINES["wrap by group, shuffle"]), 5)
    assert expected != plain
    resumable = recipe(PIPELINES["wrap by group, shuffle"])

    with Job(make) as job:
        job.steps(0)
        states = job.states()
    with Job(resumable, 5, states=states, lanes_allow="uneven") as job:
        assert job.steps(5) == expected
    assert np.array([len(step) for step in expected]).min() == GLOBAL_BATCH
    assert_restarts(recipe(PIPELINES["wrap by group, shuffle"]), plain, sizes=(2,))
