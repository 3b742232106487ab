"""Which node carries out a stage: every decision, without processes and without waiting."""

from __future__ import annotations

from typing import Any

from zephon.agent.rules import Rules
from zephon.agent.stage_owner import Action, CountLoss, Fail, Give, PutBack, StageOwner

BOTH = ("n-0", "n-1")


class Clock:
    """An owner and its time; heartbeats of five seconds, one loss is forgiven."""

    def __init__(self, **known: Any) -> None:
        rules = Rules(minimum=1, maximum=8, allowed=lambda n: True, budget=1, heartbeat_s=5.0, join_timeout_s=30.0)
        self.now = 100.0
        self.owner = StageOwner(rules, now=self.now, **known)
        self.owner.begin(self.now)

    def decide(self, *there: str, after: float = 0.0, free: tuple[str, ...] | None = None) -> list[Action]:
        """Time passes, and these nodes are there."""
        self.now += after
        return self.owner.decide("first", "waiting", there=there, free=there if free is None else free, now=self.now)

    def runs(self, *there: str) -> None:
        self.decide(*there)
        self.owner.started()


def test_the_first_node_in_natural_order_gets_the_stage_and_keeps_it() -> None:
    clock = Clock()
    assert clock.decide("n-10", "n-2") == [Give("n-2", 1, lost="")]
    assert clock.decide("n-10", "n-2", "n-1") == []
    assert clock.owner.holds("n-2", 1)
    assert not clock.owner.holds("n-10", 1)
    assert not clock.owner.holds("n-2", 2)


def test_nobody_holds_what_nobody_was_given() -> None:
    assert not Clock().owner.holds("", 0)


def test_a_node_that_leaves_is_there_and_gets_nothing() -> None:
    assert Clock().decide(*BOTH, free=("n-1",)) == [Give("n-1", 1, lost="")]


def test_a_node_that_is_gone_before_it_began_costs_nothing() -> None:
    clock = Clock()
    clock.decide("n-0")
    assert clock.decide("n-1") == [PutBack("waiting")]
    assert clock.decide("n-1") == [Give("n-1", 2, lost="")]
    assert clock.owner.lost == 0


def test_a_silent_owner_is_waited_for_and_then_followed_by_another_with_a_newer_token() -> None:
    clock = Clock()
    clock.runs(*BOTH)
    assert clock.decide("n-1") == []
    assert clock.decide("n-1", after=9.9) == []
    assert clock.decide("n-1", after=0.2) == [CountLoss(1), Give("n-1", 2, lost="n-0")]
    assert not clock.owner.holds("n-0", 1)


def test_an_owner_that_is_back_in_time_goes_on() -> None:
    clock = Clock()
    clock.runs("n-0")
    clock.decide()
    assert clock.decide("n-0", after=9.0) == []
    assert clock.owner.state == "running"
    assert clock.decide(after=9.0) == []
    assert clock.decide("n-0", after=9.0) == [], "the silence is counted anew"
    assert (clock.owner.state, clock.owner.lost) == ("running", 0)


def test_a_lost_owner_that_is_back_before_another_node_came_goes_on() -> None:
    clock = Clock()
    clock.runs("n-0")
    clock.decide()
    assert clock.decide(after=11.0) == [CountLoss(1)]
    assert clock.decide("n-0", after=5.0) == []
    assert clock.owner.holds("n-0", 1)


def test_an_owner_that_said_that_it_leaves_is_not_counted_as_lost() -> None:
    clock = Clock()
    clock.runs(*BOTH)
    clock.owner.leaving("n-1")
    clock.owner.leaving("n-0")
    clock.decide("n-1")
    assert clock.decide("n-1", after=11.0) == [Give("n-1", 2, lost="n-0")]
    assert clock.owner.lost == 0


def test_more_losses_than_the_failure_budget_fail_the_stage() -> None:
    clock = Clock()
    for node in BOTH:
        clock.runs(node)
        clock.decide()
        actions = clock.decide(after=11.0)
    assert actions == [CountLoss(2), Fail("the nodes that ran it were lost 2 times, the last one was n-1", begun=True)]


def test_losses_are_counted_for_each_stage() -> None:
    clock = Clock()
    clock.runs("n-0")
    clock.decide()
    clock.decide("n-1", after=11.0)
    clock.owner.end()
    assert (clock.owner.lost, clock.owner.token, clock.owner.state) == (0, 2, "free")
    assert clock.decide("n-1") == [Give("n-1", 3, lost="")]


def test_a_stage_for_which_no_node_comes_fails() -> None:
    clock = Clock()
    assert clock.decide(after=30.0) == []
    assert clock.decide(after=0.1) == [Fail("no node came for stage first", begun=False)]


def test_a_new_coordinator_goes_on_with_the_owner_that_it_finds_noted() -> None:
    clock = Clock(token=7, node="n-0", lost=1)
    assert clock.decide(*BOTH) == []
    assert clock.owner.holds("n-0", 7)
    clock.decide("n-1")
    assert isinstance(clock.decide("n-1", after=11.0)[-1], Fail), "the losses that were noted count"


def test_a_new_coordinator_waits_longer_for_the_owner_of_the_one_before_it_until_that_has_found_it() -> None:
    clock = Clock(token=7, node="n-0")
    assert clock.decide("n-1") == []
    assert clock.decide("n-1", after=54.0) == [], "the name of the coordinator may have led to the old address until now"
    assert clock.decide("n-0", after=0.5) == []
    assert clock.decide("n-1") == []
    assert clock.decide("n-1", after=10.1) == [CountLoss(1), Give("n-1", 8, lost="n-0")]


def test_an_owner_that_died_with_the_coordinator_is_followed_by_another() -> None:
    clock = Clock(token=7, node="n-0")
    clock.decide("n-1")
    assert clock.decide("n-1", after=55.1) == [CountLoss(1), Give("n-1", 8, lost="n-0")]
