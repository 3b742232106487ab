"""What a rank saves is read back as it was, by pure functions; the definition that it is read with stays as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import checkpoint

from tests.ops.recipes import PIPELINES, recipe
from zephon import Dataset, InMemoryShard, Pipeline, StaticMixtureWorkSource
from zephon.errors import ConfigError, StateError
from zephon.pipeline.definition import Definition
from zephon.pipeline.state import flat, initial, nested, reassigned, restored, saved
from zephon.types import Sampled

NAME = "wrap, streaming shuffle"


def taken(count: int, **options: Any) -> Pipeline:
    pipeline = recipe(PIPELINES[NAME])(**options)
    batches = iter(pipeline)
    for _ in range(count):
        next(batches)
    pipeline.close()
    return pipeline


def definition(**options: Any) -> Definition:
    return recipe(PIPELINES[NAME])(**options).definition


def test_a_state_is_read_back_as_it_was_saved() -> None:
    pipeline = taken(16)
    state = pipeline.checkpoint()
    made, back = restored(definition(), state)
    assert saved(made, back) == state
    assert nested(flat(saved(made, back))) == state


def test_the_measurement_of_the_run_travels_with_its_state() -> None:
    rows = InMemoryShard([{"text": "abcd"}] * 9)
    datasets = [Dataset.from_dict(name, {name: rows}) for name in ("a", "b")]
    source = StaticMixtureWorkSource(datasets, {"a": 1, "b": 2})
    before = Pipeline(source).tokenize(tokenizer_id="bytes", field="text").batch(1).definition
    counts = {"a": Sampled(3, 7, 11), "b": Sampled(5, 9)}
    assert counts != before.counts
    made, _ = restored(before, saved(before.calibrated(counts), initial(before)))
    assert (before.measured, made.measured) == (None, counts)


def test_what_is_missing_or_of_another_layout_is_named() -> None:
    state = saved(definition(), initial(definition()))
    for wrong, says in (
        ({key: value for key, value in state.items() if key != "stream"}, r"\['stream'\] missing"),
        ({**state, "version": 99}, "version 99"),
        (flat(state), "give it to load_state_dict"),
        ({**state, "lanes": {0: state["lanes"][0]}}, "no cursor for lane 1"),
        ({**state, "stream": json.dumps({**json.loads(state["stream"]), "lanes": 9})}, "lanes: saved 9, now 8"),
    ):
        with pytest.raises(StateError, match=says):
            restored(definition(), wrong)


def test_a_state_from_the_middle_of_a_step_goes_on_at_its_own_size_only() -> None:
    state = taken(1).checkpoint()
    assert state["microbatch"] == 1
    assert restored(definition(), state)[1].microbatch == 1
    with pytest.raises(StateError, match="in the middle of step 0 by data-parallel rank and size"):
        restored(definition(dp_degree=2), state)


def test_another_rank_of_another_size_keeps_the_lanes_of_the_run() -> None:
    whole = definition(canonical_replicas=8)
    state = saved(whole, initial(whole))
    made, back = reassigned(whole, 4, 1, state, [])
    assert (made.options.dp_degree, made.options.dp_group_id, sorted(back.lanes)) == (4, 1, [2, 3])
    with pytest.raises(ConfigError):
        reassigned(whole, 3, 0, state, [])
    assert (whole.options.dp_degree, whole.options.dp_group_id) == (1, 0)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized:UserWarning")
def test_ranks_saved_together_at_different_steps_are_refused_on_load(tmp_path: Path) -> None:
    def after(rank: int, steps: int) -> Pipeline:
        pipeline = over_ranks(rank)
        for batch in pipeline if steps else ():
            if batch.step == steps - 1:
                break
        return pipeline

    for number, (steps, torn) in enumerate([((3, 2), True), ((3, 0), True), ((2, 2), False), ((0, 0), False)]):
        saved = [after(rank, count).state_dict() for rank, count in enumerate(steps)]
        checkpoint.save({**saved[1], **saved[0]}, checkpoint_id=tmp_path / str(number), no_dist=True)  # one `step` stays of two
        for rank, again in enumerate(map(over_ranks, range(2))):
            mine = again.state_dict()
            checkpoint.load(mine, checkpoint_id=tmp_path / str(number), no_dist=True)
            if torn and rank == 1:
                with pytest.raises(StateError, match=rf"lane 1 was saved at step {steps[1]}, the state is of step 3"):
                    again.load_state_dict(mine)
            else:
                again.load_state_dict(mine)
                assert again.checkpoint()["step"] == steps[0]


def over_ranks(rank: int) -> Pipeline:
    dataset = Dataset.from_dict("d", {"s": InMemoryShard([{"text": f"number {i}"} for i in range(60)])})
    pipeline = Pipeline(StaticMixtureWorkSource([dataset], exhausted_policy="repeat", chunk_bytes=64))
    pipeline.options(runner="inline", dp_degree=2, dp_group_id=rank, global_batch_size=4)
    return pipeline.tokenize(tokenizer_id="bytes", field="text").pack_flat(16, algorithm="wrap").batch(2)


def test_a_lanes_value_that_is_damaged_is_refused() -> None:
    state = over_ranks(0).state_dict()
    for value in (b"", b"12345678", "text"):
        with pytest.raises(StateError, match="the value of lane 0 is damaged"):
            over_ranks(0).load_state_dict({**state, "lane.0": value})
