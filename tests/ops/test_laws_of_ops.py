"""The laws over every op: composed pipelines restarted at every step and size, with any workers and microbatches."""

from __future__ import annotations

import functools

import pytest

from tests.laws import STATE_LIMIT, Job, Step, assert_restarts, assert_same_data, reference
from tests.ops.recipes import PIPELINES, recipe

STEPS = 7
UNEVEN = (1, 3, 16, 5, 8, 12, 6, 7)


@functools.cache
def expected(name: str) -> list[Step]:
    steps = reference(recipe(PIPELINES[name]), STEPS)
    assert len(steps) == STEPS
    return steps


@pytest.mark.parametrize("name", PIPELINES)
def test_a_restart_at_every_step_and_another_size_loses_and_repeats_nothing(name: str) -> None:
    assert_restarts(recipe(PIPELINES[name]), expected(name), sizes=UNEVEN, lanes_allow="uneven")


@pytest.mark.parametrize("name", PIPELINES)
def test_threads_prefetch_and_microbatches_do_not_change_the_data(name: str) -> None:
    number = list(PIPELINES).index(name)
    options = {"max_workers": 1 + number % 3, "prefetch_batches": number % 4, "microbatch_size": 1 + number % 3}
    sizes = ((1, 2, 4, 8)[number % 4],)
    assert_same_data(recipe(PIPELINES[name]), expected(name)[:4], sizes=sizes, runner="threads", **options)


def test_states_stay_small_however_far_the_run_is() -> None:
    for name in ("wrap by dataset", "quarantine", "mixture ensured, then wrap and shuffle"):
        with Job(recipe(PIPELINES[name])) as job:
            for _ in range(20):
                job.steps(2)
                assert max(len(cursor) for state in job.states() for cursor in state["lanes"].values()) < STATE_LIMIT
