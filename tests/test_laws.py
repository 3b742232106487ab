"""The laws of the loader on its main pipeline, and on random small ones."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.laws import Job, Recipe, assert_restarts, assert_same_data, reference
from tests.strategies import datasets, shapes
from zephon import Dataset, Pipeline, StaticMixtureWorkSource

# Random data are often too few for the lanes, or for a step, which is said and changes nothing of the laws.
pytestmark = [
    pytest.mark.filterwarnings("ignore:the data holds"),
    pytest.mark.filterwarnings("ignore:the data ends before the first step"),
]
STEPS = 24


@functools.cache
def main_source() -> StaticMixtureWorkSource:
    sources = [Dataset.from_path("docs", "stdlib://docs"), Dataset.from_path("code", "stdlib://code")]
    return StaticMixtureWorkSource(
        sources, {"docs": 1, "code": 1}, seed=3, shuffle_within_shard=True, exhausted_policy="repeat", chunk_bytes=16384
    )


def main_recipe(dp_degree: int = 1, dp_group_id: int = 0, microbatch_size: int = 2, **options: Any) -> Pipeline:
    """Two real datasets, GPT-2, wrap, shuffle: 8 lanes, global batch 16."""
    fixed = {"canonical_replicas": 8, "global_batch_size": 16, "max_workers": 2}
    return (
        Pipeline(main_source())
        .options(**{**fixed, "dp_degree": dp_degree, "dp_group_id": dp_group_id, **options})
        .tokenize(tokenizer_id="gpt2", field="text", special_tokens="eos")
        .pack_flat(128, algorithm="wrap")
        .shuffle(64, seed=5)
        .batch(microbatch_size)
    )


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    return reference(main_recipe, STEPS)


def test_every_size_delivers_the_same_steps(expected: list[Any]) -> None:
    assert_same_data(main_recipe, expected, sizes=(1, 2, 4, 8))


@pytest.mark.parametrize("dp", [3, 5, 6, 7, 12])
def test_uneven_sizes_deliver_the_same_steps(expected: list[Any], dp: int) -> None:
    assert_same_data(main_recipe, expected[:6], sizes=(dp,), lanes_allow="uneven")


def test_two_ranks_inside_one_lane_deliver_the_same_steps(expected: list[Any]) -> None:
    assert_same_data(main_recipe, expected[:6], sizes=(16,), lanes_allow="shared")


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("ahead", [0, 2, 8])
def test_workers_and_prefetch_do_not_change_the_data(expected: list[Any], workers: int, ahead: int) -> None:
    assert_same_data(main_recipe, expected[:8], sizes=(1,), max_workers=workers, prefetch_batches=ahead)


@pytest.mark.parametrize("size", [1, 2, 3, 16])
def test_the_microbatch_size_does_not_change_the_data(expected: list[Any], size: int) -> None:
    assert_same_data(main_recipe, expected[:8], sizes=(2,), microbatch_size=size)


def test_a_restart_at_every_step_and_size_loses_and_repeats_nothing(expected: list[Any]) -> None:
    assert_restarts(main_recipe, expected, sizes=(1, 2, 4, 8), max_workers=1)


def test_read_ahead_does_not_move_the_state() -> None:
    states = []
    for ahead in (0, 2, 8):
        with Job(main_recipe, prefetch_batches=ahead) as job:
            job.steps(5)
            states.append(job.states())
    assert states[0] == states[1] == states[2]


def test_the_middle_of_a_step_can_be_saved_and_resumed_at_the_same_size(expected: list[Any]) -> None:
    pipeline = main_recipe(microbatch_size=2)
    batches = iter(pipeline)
    taken = [next(batches) for _ in range(11)]
    state = pipeline.checkpoint()
    assert state["microbatch"] == 3
    follows = next(batches)
    pipeline.close()
    resumed = main_recipe(microbatch_size=2).restore(state)
    again = next(iter(resumed))
    resumed.close()
    assert taken[-1].microbatch == (2, 8)
    assert (again.fields["input_ids"] == follows.fields["input_ids"]).all()
    assert again.slots.tolist() == follows.slots.tolist()


def small_recipe(dataset: Dataset, shape: dict[str, int], *, shuffled: bool, repeat: bool) -> Recipe:
    def recipe(dp_degree: int = 1, dp_group_id: int = 0, microbatch_size: int = 2, **options: Any) -> Pipeline:
        source = StaticMixtureWorkSource(
            [dataset], seed=1, exhausted_policy="repeat" if repeat else None, chunk_bytes=shape["chunk_bytes"]
        )
        fixed: dict[str, Any] = {
            "canonical_replicas": shape["lanes"],
            "global_batch_size": shape["lanes"] * shape["per_lane"],
            "flush_every_k_chunks": shape["flush"],
            "max_workers": 1,
        }
        pipeline = Pipeline(source).options(**{**fixed, "dp_degree": dp_degree, "dp_group_id": dp_group_id, **options})
        pipeline.tokenize(tokenizer_id="bytes", field="text", special_tokens="bos_eos")
        pipeline.pack_flat(shape["max_length"], algorithm="wrap")
        if shuffled:
            pipeline.shuffle(shape["buffer"], seed=2)
        return pipeline.batch(microbatch_size)

    return recipe


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(dataset=datasets(), shape=shapes())
def test_wrap_and_shuffle_keep_the_laws_for_any_shape(dataset: Dataset, shape: dict[str, int]) -> None:
    recipe = small_recipe(dataset, shape, shuffled=True, repeat=True)
    expected = reference(recipe, 10)
    assert len(expected) == 10
    divisors = [dp for dp in (1, 2, 4) if shape["lanes"] % dp == 0]
    assert_restarts(recipe, expected, sizes=divisors, prefetch_batches=1)
    assert_same_data(recipe, expected, sizes=divisors, microbatch_size=1)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(dataset=datasets(), shape=shapes())
def test_wrap_alone_needs_no_sentinel_and_its_interval_changes_nothing(dataset: Dataset, shape: dict[str, int]) -> None:
    recipe = small_recipe(dataset, shape, shuffled=False, repeat=True)
    expected = reference(recipe, 10)
    assert_restarts(recipe, expected, sizes=(1,), runner="inline")
    assert_same_data(recipe, expected, sizes=(1,), flush_every_k_chunks=shape["flush"] + 3)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(dataset=datasets(), shape=shapes())
def test_every_token_of_one_pass_is_delivered_exactly_once(dataset: Dataset, shape: dict[str, int]) -> None:
    recipe = small_recipe(dataset, {**shape, "lanes": 1, "per_lane": 1}, shuffled=True, repeat=False)
    text = [row["text"].encode() for shard in dataset.memory for row in shard.rows]
    total = sum(len(t) + 2 for t in text)
    with Job(recipe, microbatch_size=1, runner="inline") as job:
        counted = [0] * 258
        used = 0
        for step in job.iterators[0]:
            for batch in step:
                ids = batch.fields["input_ids"]
                for token in ids[0, : batch.used[0]].tolist():  # type: ignore[union-attr, index, call-overload]
                    counted[token] += 1
                used += int(batch.used[0])
    assert used == total
    assert counted[256] == counted[257] == len(text)
    assert counted[97:123] == [sum(t.count(bytes([c])) for t in text) for c in range(97, 123)]
