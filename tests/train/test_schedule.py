"""The learning rate by step."""

from __future__ import annotations

import itertools

import pytest

from zephon.spec.experiment import OptimizerSpec
from zephon.train.schedule import learning_rate


def rates(steps: int = 100, **changes) -> list[float]:
    spec = OptimizerSpec(**{"lr": 1.0, "warmup_steps": 10, "min_lr_ratio": 0.1, **changes})
    return [learning_rate(spec, step=step, steps=steps) for step in range(steps)]


def test_the_fifth_of_ten_warm_up_steps_runs_at_half_the_peak():
    assert rates()[4] == 0.5
    assert rates()[9] == 1.0


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd", "constant"])
def test_no_rate_leaves_the_range_between_floor_and_peak_after_warm_up(schedule):
    assert all(0.1 <= rate <= 1.0 for rate in rates(schedule=schedule)[10:])


def test_cosine_is_half_way_down_in_the_middle_and_ends_at_the_floor():
    found = rates(schedule="cosine", warmup_steps=0, steps=100)
    assert found[50] == pytest.approx(0.55)
    assert found[99] == pytest.approx(0.1, abs=1e-3)


def test_linear_falls_by_equal_amounts():
    found = rates(schedule="linear")[10:]
    assert {round(a - b, 9) for a, b in itertools.pairwise(found)} == {0.01}


def test_wsd_is_flat_and_then_falls_over_its_decay_steps():
    found = rates(schedule="wsd", decay_steps=20)
    assert set(found[10:81]) == {1.0}
    assert found[81] < 1.0
    assert found[90] == pytest.approx(0.55)


def test_decay_steps_end_a_cosine_before_the_run_does():
    assert set(rates(schedule="cosine", decay_steps=60)[60:]) == {0.1}


def test_a_schedule_in_tokens_is_that_in_steps_when_every_label_is_trained():
    in_steps = OptimizerSpec(lr=1.0, warmup_steps=10, decay_steps=60)
    in_tokens = OptimizerSpec(lr=1.0, warmup_steps=0, warmup_tokens=1000, decay_tokens=6000)
    for step in range(100):
        expected = learning_rate(in_steps, step=step, steps=100)
        found = learning_rate(in_tokens, step=step, steps=100, tokens=100 * step, tokens_per_step=100)
        assert found == pytest.approx(expected)


def test_a_schedule_in_tokens_waits_for_the_tokens():
    spec = OptimizerSpec(lr=1.0, warmup_tokens=1000)
    assert learning_rate(spec, step=50, steps=100, tokens=400, tokens_per_step=100) == 0.5
