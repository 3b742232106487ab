"""Faults reported of other loaders (sections A to H), as tests named by what must not happen here.

Those that another file already covers by the laws are not repeated: the letters there are in its test names' stead.
"""

from __future__ import annotations

import collections
import itertools
import threading
from typing import Any

import numpy as np
import pytest

from tests.laws import Job
from zephon import Dataset, InMemoryShard, Pipeline, SampleBatch, StaticMixtureWorkSource, TokenEstimation
from zephon.cursor import Cursor
from zephon.errors import ConfigError, StateError


def numbered(n: int, shards: int = 1, name: str = "d", first: int = 0) -> Dataset:
    rows = [{"id": first + i} for i in range(n)]
    size = -(-n // shards)
    return Dataset.from_dict(name, {f"s{s}": InMemoryShard(rows[s * size : (s + 1) * size]) for s in range(shards)})


def pipeline_of(dataset: Dataset, *, batch: int = 1, source: dict[str, Any] | None = None, **options: Any) -> Pipeline:
    """Documents in stored order, one lane, ``batch`` documents a step; a chunk is three documents."""
    made = StaticMixtureWorkSource(
        [dataset], **{"shuffle_shards": False, "shuffle_within_shard": False, "chunk_bytes": 24, **(source or {})}
    )
    fixed = {"global_batch_size": batch, "canonical_replicas": 1, "runner": "inline", "prefetch_batches": 0}
    return Pipeline(made).options(**{**fixed, **options})


def ids(batches: Any) -> list[int]:
    return [i for batch in batches for i in batch.payload["id"][: batch.real_rows]]


def first(pipeline: Pipeline, n: int) -> list[SampleBatch]:
    batches = list(itertools.islice(iter(pipeline), n))
    pipeline.close()
    return batches


def resumed(pipeline: Pipeline, state: Any) -> Pipeline:
    return pipeline.restore(state)


# ---- A: resuming


def test_a01_a_fresh_loader_with_the_state_goes_on_behind_it() -> None:
    pipeline = pipeline_of(numbered(10)).batch(1)
    first(pipeline, 5)
    again = resumed(pipeline_of(numbered(10)).batch(1), pipeline.checkpoint())
    assert ids(first(again, 1)) == [5]


@pytest.mark.parametrize("workers", [0, 2])
def test_a03_the_position_is_in_documents_through_packing(workers: int) -> None:
    dataset = Dataset.from_dict("d", {"s": InMemoryShard([{"input_ids": [i, i, i]} for i in range(1, 13)])})

    def make() -> Pipeline:
        return pipeline_of(dataset, runner="threads", max_workers=workers).pack_flat(6, algorithm="wrap").batch(1)

    pipeline = make()
    first(pipeline, 2)
    (row,) = first(resumed(make(), pipeline.checkpoint()), 1)
    assert np.asarray(row.fields["input_ids"]).tolist() == [[5, 5, 5, 6, 6, 6]]


def test_a07_any_number_of_resumes_is_one_run() -> None:
    got, state = [], None
    for count in (5, 5, 1, 3, 6):
        pipeline = pipeline_of(numbered(20)).batch(1)
        got += ids(first(resumed(pipeline, state) if state else pipeline, count))
        state = pipeline.checkpoint()
    assert got == list(range(20))


def test_a09_a_shuffle_buffer_loses_and_repeats_nothing_at_a_resume() -> None:
    pipeline = pipeline_of(numbered(200)).shuffle(50).batch(1)
    before = ids(first(pipeline, 20))
    after = ids(resumed(pipeline_of(numbered(200)).shuffle(50).batch(1), pipeline.checkpoint()))
    assert sorted(before + after) == list(range(200))


def test_a11_a_state_may_be_asked_for_right_after_a_resume() -> None:
    state, got = None, []
    for count in (2, 0, 1, 0, 2):
        pipeline = pipeline_of(numbered(16), runner="threads", max_workers=4, prefetch_batches=2).batch(1)
        if state is not None:
            pipeline.restore(state)
            assert pipeline.checkpoint()["lanes"] == state["lanes"]
        got += ids(first(pipeline, count)) if count else []
        pipeline.close()
        state = pipeline.checkpoint()
    assert got == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("at", [4, 9, 10, 13])
def test_a15_every_pass_behind_a_resume_is_complete(at: int) -> None:
    def make() -> Pipeline:
        return pipeline_of(numbered(10), source={"stop_after_passes": 3, "shuffle_shards": True}).batch(1)

    pipeline = make()
    got = ids(first(pipeline, at))
    got += ids(resumed(make(), pipeline.checkpoint()))
    assert len(got) == 30
    assert all(sorted(got[i : i + 10]) == list(range(10)) for i in (0, 10, 20))


def test_a17_a_resumed_loader_keeps_its_settings() -> None:
    for drop_last, expected in ((True, 16), (False, 18)):
        pipeline = pipeline_of(numbered(18), batch=4).batch(4, drop_last=drop_last)
        before = ids(first(pipeline, 2))
        again = resumed(pipeline_of(numbered(18), batch=4).batch(4, drop_last=drop_last), pipeline.checkpoint())
        assert len(before + ids(again)) == expected


def test_a21_the_document_that_did_not_fit_is_in_the_next_row_after_a_resume() -> None:
    dataset = Dataset.from_dict("d", {"s": InMemoryShard([{"input_ids": [i] * 3} for i in (1, 2, 3, 4)])})
    state, got = None, []
    for _ in range(2):
        pipeline = pipeline_of(dataset).pack_flat(5, algorithm="wrap").batch(1)
        if state is not None:
            pipeline.restore(state)
        (row,) = first(pipeline, 1)
        got += np.asarray(row.fields["input_ids"])[0].tolist()
        state = pipeline.checkpoint()
    assert got == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4]


def test_a27_a_position_behind_the_end_ends_and_a_damaged_one_is_refused() -> None:
    pipeline = pipeline_of(numbered(10)).batch(1)
    first(pipeline, 1)
    state = pipeline.checkpoint()
    state["lanes"] = {0: Cursor(position=12, tokens=(0,)).encode()}
    assert ids(resumed(pipeline_of(numbered(10)).batch(1), state)) == []
    state["lanes"] = {0: b"\xff\xff"}
    with pytest.raises(StateError, match="lane 0 is damaged"):
        resumed(pipeline_of(numbered(10)).batch(1), state)


def test_a33_a_global_batch_that_lanes_do_not_divide_is_refused_with_the_nearest_ones() -> None:
    with pytest.raises(ConfigError, match="use a global batch of 32 or 36"):
        _ = pipeline_of(numbered(8), canonical_replicas=4, batch=33).batch(1).world


# ---- B: sizes


def sized(dp_degree: int = 1, dp_group_id: int = 0, microbatch_size: int = 2, **options: Any) -> Pipeline:
    place = {"canonical_replicas": 24, "dp_degree": dp_degree, "dp_group_id": dp_group_id}
    source = {"exhausted_policy": "repeat", "chunk_bytes": 8}
    return pipeline_of(numbered(48), batch=24, source=source, **{**place, **options}).batch(microbatch_size)


def test_b01_another_number_of_ranks_loses_no_state() -> None:
    with Job(sized) as job:
        expected = job.steps(4)
    with Job(sized, 4) as job:
        got = job.steps(2)
        states = job.states()
    with Job(sized, 2, states=states) as job:
        assert got + job.steps(2) == expected
    with pytest.raises(StateError, match="no cursor for lane"):
        sized(2, 1).restore(states[0])


def test_b07_every_size_that_divides_the_lanes_runs_and_others_are_refused_with_the_list() -> None:
    for dp in (1, 2, 3, 4, 6, 8, 12, 24):
        assert sized(dp).world.dp_degree == dp
    with pytest.raises(ConfigError, match="use one of 1, 2, 3, 4, 6, 8, 12, 24 ranks"):
        _ = sized(5).world


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_b21_the_order_does_not_depend_on_workers(workers: int) -> None:
    with Job(sized, 3, runner="threads", max_workers=workers) as job, Job(sized) as plain:
        assert job.steps(3) == plain.steps(3)


def test_b17_a_degree_that_is_named_overrides_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    assert ids(pipeline_of(numbered(12)).options(dp_degree=1).batch(1)) == list(range(12))


def test_b19_the_position_is_in_sequences_and_not_in_steps() -> None:
    """What defines a step is pinned: a resume with another global batch is refused rather than misread."""
    pipeline = pipeline_of(numbered(24), batch=2).batch(2)
    first(pipeline, 3)
    with pytest.raises(StateError, match="global_batch_size: saved 2, now 6"):
        resumed(pipeline_of(numbered(24), batch=6).batch(2), pipeline.checkpoint())
    with pytest.raises(StateError, match="give it to load_state_dict"):
        resumed(pipeline_of(numbered(24), batch=2).batch(2), pipeline.state_dict())


# ---- C: passes and seeds


def passes(count: int, n: int = 16, **options: Any) -> list[list[int]]:
    source = {"stop_after_passes": count, "shuffle_shards": True, "shuffle_within_shard": True, **options}
    got = ids(pipeline_of(numbered(n), source=source).batch(1))
    return [got[i : i + n] for i in range(0, len(got), n)]


def test_c01_every_pass_has_an_order_of_its_own_and_the_same_one_for_any_workers() -> None:
    orders = passes(3)
    assert len({tuple(order) for order in orders}) == 3
    source = {"stop_after_passes": 3, "shuffle_shards": True, "shuffle_within_shard": True}
    threads = pipeline_of(numbered(16), source=source, runner="threads", max_workers=2).batch(1)
    assert ids(threads) == list(itertools.chain(*orders))
    assert len({tuple(order) for order in passes(3, reshuffle_on_repeat=False)}) == 1


def test_c05_one_dataset_twice_is_reported() -> None:
    dataset = numbered(5)
    with pytest.raises(ConfigError, match="stands for 2 datasets"):
        StaticMixtureWorkSource([dataset, dataset], shuffle_within_shard=False)


def test_c09_within_a_pass_every_document_comes_before_any_comes_again() -> None:
    for order in passes(4, n=5):
        assert sorted(order) == [0, 1, 2, 3, 4]


# ---- D: uneven ends


def test_d05_ranks_end_at_the_same_step_whatever_the_shards_are() -> None:
    dataset = numbered(37, shards=5)

    def make(dp_degree: int = 1, dp_group_id: int = 0, **options: Any) -> Pipeline:
        place = {"canonical_replicas": 2, "dp_degree": dp_degree, "dp_group_id": dp_group_id}
        return pipeline_of(dataset, batch=2, **{**place, **options}).batch(1)

    counts = [len(list(make(2, rank))) for rank in range(2)]
    whole = len(list(make())) // 2
    assert max(counts) - min(counts) <= 3, "lanes end at their own last chunk; a trainer stops at the first that ends"
    assert min(counts) == whole


def test_d09_one_rank_iterates_without_waiting_for_another() -> None:
    assert len(first(sized(2, 0), 6)) == 6


def test_d13_tiny_data_gives_a_short_run_and_not_none() -> None:
    got = [ids(pipeline_of(numbered(49), batch=4).batch(4))]
    assert len(got[0]) == 48


def test_d17_starting_and_breaking_off_many_times_leaves_nothing_behind() -> None:
    before = threading.active_count()
    pipeline = pipeline_of(numbered(30), runner="threads", max_workers=2, prefetch_batches=2).batch(1)
    for _ in range(30):
        for _ in pipeline:
            break
    pipeline.close()
    assert threading.active_count() == before


# ---- G: documents in rows (see also test_training.py)


def test_g05_lengths_are_those_of_what_is_written() -> None:
    docs = [[1], [2, 3], []]
    dataset = Dataset.from_dict("d", {"s": InMemoryShard([{"text": bytes(d).decode()} for d in docs])})
    pipeline = pipeline_of(dataset).tokenize(tokenizer_id="bytes", field="text", special_tokens="eos").pack_flat(6).batch(1)
    (batch,) = pipeline
    assert batch.used.tolist() == [6]
    assert batch.tokens == {"d": 6}
    assert batch.positions().tolist() == [[0, 1, 0, 1, 2, 0]]


def test_g07_counters_are_wider_than_32_bits() -> None:
    cursor = Cursor(2**33, 3, 2**34, 2**35, (2**40,))
    assert Cursor.decode(cursor.encode()) == cursor


# ---- H: mixtures


def test_h01_weights_are_in_tokens_whatever_the_documents_length() -> None:
    made = [
        Dataset.from_dict(name, {"s": InMemoryShard([{"text": "x" * n, "id": i} for i in range(1000)])})
        for name, n in (("a", 3), ("b", 39))
    ]
    source = StaticMixtureWorkSource(
        made, {"a": 1, "b": 1}, shuffle_within_shard=False, exhausted_policy="repeat", chunk_bytes=400
    )
    pipeline = Pipeline(source).options(runner="inline", prefetch_batches=0, global_batch_size=8)
    pipeline.tokenize(tokenizer_id="bytes", field="text", special_tokens="eos").pack_flat(64, algorithm="wrap").batch(8)
    total: collections.Counter[str] = collections.Counter()
    for batch in itertools.islice(iter(pipeline), 300):
        total.update(batch.tokens)
    pipeline.close()
    assert abs(total["a"] / total.total() - 0.5) < 0.01


@pytest.mark.parametrize("policy", ["redistribute"])
def test_h03_each_document_exactly_once(policy: str) -> None:
    made = [numbered(3, name="a"), numbered(4, name="b", first=10), numbered(3, name="c", first=20)]
    source = StaticMixtureWorkSource(
        made, {"a": 1, "b": 1, "c": 1}, shuffle_within_shard=False, exhausted_policy=policy, chunk_bytes=8
    )
    got = ids(Pipeline(source).options(runner="inline").batch(1))
    assert sorted(got) == [0, 1, 2, 10, 11, 12, 13, 20, 21, 22]


def test_h05_a_later_shuffle_keeps_the_mixtures_end() -> None:
    def count(shuffled: bool) -> int:
        made = [numbered(3, name="a"), numbered(4, name="b", first=10), numbered(3, name="c", first=20)]
        mixture, primer = {"a": 0.2, "b": 0.6, "c": 0.2}, TokenEstimation(primer=1.0)
        source = StaticMixtureWorkSource(made, mixture, shuffle_within_shard=False, chunk_bytes=8, token_estimation=primer)
        pipeline = Pipeline(source).options(runner="inline")
        return len(ids((pipeline.shuffle(4) if shuffled else pipeline).batch(1)))

    assert count(True) == count(False) > 10


def test_h11_without_weights_each_document_comes_once_in_proportion_to_size() -> None:
    source = StaticMixtureWorkSource(
        [numbered(10, name="a"), numbered(20, name="b", first=100)], shuffle_within_shard=False, chunk_bytes=8
    )
    got = ids(Pipeline(source).options(runner="inline").batch(1))
    assert sorted(got) == [*range(10), *range(100, 120)]
