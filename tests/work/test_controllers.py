"""Controllers: pure functions of what was measured, towards what their papers say."""

from __future__ import annotations

import math

import pytest

from zephon.work.controllers import LearningSpeed, Measured, MixtureController, OnlineMixing

NAMES = ("easy", "hard")


def measured(steps: int, loss: dict[str, float], tokens: dict[str, int]) -> list[Measured]:
    return [Measured(step, loss, tokens) for step in range(steps)]


def curve(steps: int, exponents: dict[str, float], share: float = 0.5) -> list[Measured]:
    """Losses that fall by a power of their own tokens, 1,000 tokens a step."""
    history = []
    tokens = {"easy": int(1000 * share), "hard": 1000 - int(1000 * share)}
    for step in range(steps):
        loss = {name: 2 + 3 * ((step + 1) * tokens[name]) ** -exponent for name, exponent in exponents.items()}
        history.append(Measured(step, loss, tokens))
    return history


@pytest.mark.parametrize(
    "controller", [OnlineMixing(names=NAMES, every=10), LearningSpeed(names=NAMES, prior={"easy": 0.5, "hard": 0.5})]
)
def test_shares_are_whole_millionths_that_sum_to_one_with_a_floor(controller: MixtureController) -> None:
    for steps in (1, 5, 10, 333):
        shares = controller.decide(measured(steps, {"easy": 0.001, "hard": 40.0}, {"easy": 999, "hard": 1}))
        assert sum(round(share * 10**6) for share in shares.values()) == 10**6
        assert min(shares.values()) >= 0.01
        assert shares == controller.decide(measured(steps, {"easy": 0.001, "hard": 40.0}, {"easy": 999, "hard": 1}))


def test_online_mixing_gives_more_to_the_higher_loss_and_the_first_decision_is_the_papers() -> None:
    history = measured(10, {"easy": 1.0, "hard": 4.0}, {"easy": 500, "hard": 500})
    shares = OnlineMixing(names=NAMES, every=10, least=1e-6).decide(history)
    rate, before = min(0.5, math.sqrt(math.log(2) / 2)), 0.5
    rewards = {name: 0.1 * loss * 2 for name, loss in history[0].loss.items()}
    powers = {name: math.exp(before * reward) for name, reward in rewards.items()}
    expected = (1 - 2 * rate) * powers["hard"] / sum(powers.values()) + rate
    assert abs(shares["hard"] - expected) < 1e-4
    longer = OnlineMixing(names=NAMES, every=10).decide(measured(400, {"easy": 1.0, "hard": 4.0}, {"easy": 500, "hard": 500}))
    assert longer["hard"] > shares["hard"]


def test_a_dataset_that_was_hardly_seen_counts_by_its_loss_and_not_by_its_tokens() -> None:
    rare = measured(50, {"easy": 2.0, "hard": 2.0}, {"easy": 900, "hard": 100})
    shares = OnlineMixing(names=NAMES, every=10).decide(rare)
    assert shares["hard"] > shares["easy"], "the same loss of a smaller share is a higher reward"


def test_learning_speed_gives_more_to_the_loss_that_still_falls() -> None:
    controller = LearningSpeed(names=NAMES, prior={"easy": 0.5, "hard": 0.5})
    shares = controller.decide(curve(640, {"easy": 1.0, "hard": 0.2}))
    assert shares["hard"] > 0.65
    assert controller.decide(measured(1, {"easy": 1, "hard": 1}, {"easy": 1, "hard": 1})) == {"easy": 0.5, "hard": 0.5}


def test_a_loss_that_is_not_finite_is_no_measurement() -> None:
    broken = [*measured(20, {"easy": 1.0, "hard": 2.0}, {"easy": 5, "hard": 5}), Measured(20, {"easy": math.nan}, {"easy": 5})]
    assert OnlineMixing(names=NAMES, every=21).decide(broken) == OnlineMixing(names=NAMES, every=21).decide(broken[:20])
