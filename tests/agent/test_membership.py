"""The state machine of memberships: every decision, without processes and without waiting."""

from __future__ import annotations

import math
from typing import Any

import pytest

from zephon.agent.membership import Form, Membership, Release, Rules
from zephon.agent.messages import Finish, Rerendezvous, WorkerError


def rules(**changes: Any) -> Rules:
    base: dict[str, Any] = {"minimum": 1, "maximum": 8, "allowed": lambda n: n in (1, 2, 4, 8), "budget": 2, "heartbeat_s": 5.0}
    return Rules(**{**base, **changes})


class Clock:
    """A membership and its time."""

    def __init__(self, *, target: int | None = None, expected: int | None = None, generation: int = 0, **changes: Any) -> None:
        self.now = 100.0
        self.members = Membership(rules(**changes), target=target, expected=expected, generation=generation, now=self.now)

    def pass_(self, seconds: float) -> list[Any]:
        """Time passes, with signs of life from all nodes."""
        self.now += seconds
        for name in self.members.nodes:
            self.members.beat(name, self.now)
        return self.members.decide(self.now)

    def ready(self, *names: str) -> list[Any]:
        for name in names:
            if name not in self.members.nodes:
                self.members.hello(name, self.now)
            self.members.ready(name, self.now, store=f"{name}:1")
        return self.members.decide(self.now)

    def exited(self, *names: str, status: int = 75, error: WorkerError | None = None) -> list[Any]:
        for name in names:
            number = self.members.generation
            self.members.exited(
                name, self.now, generation=number, exits={self.members.members.index(name): status}, error=error
            )
        return self.members.decide(self.now)


def test_workers_that_say_they_are_done_end_the_run_as_failed_when_its_files_do_not_say_so() -> None:
    clock = Clock(target=2, record_s=60.0)
    clock.ready("n-0", "n-1")
    clock.members.note_missing("the ledger has 286 of 3000 steps")
    assert clock.exited("n-0", status=0) == []
    assert not clock.members.all_done()
    assert clock.exited("n-1", status=0) == []
    assert clock.members.all_done()
    assert clock.pass_(59) == []
    (finish,) = clock.pass_(2)
    assert finish == Finish(1, "all workers ended with status 0, but the ledger has 286 of 3000 steps")


def test_files_that_come_late_to_this_machine_are_waited_for() -> None:
    clock = Clock(target=1)
    clock.ready("n-0")
    clock.members.note_missing("the newest complete checkpoint is of step 10 and the last step is 20")
    assert clock.exited("n-0", status=0) == []
    clock.members.note_missing("")
    (finish,) = clock.pass_(1)
    assert finish == Finish(0, "all steps are done")


def crash(rank: int = 0, status: int = 1, time: float = 1.0) -> WorkerError:
    return WorkerError(time=time, rank=rank, node=f"n-{rank}", status=status, message="boom")


def test_a_generation_forms_at_once_when_the_target_is_ready_and_in_natural_order() -> None:
    clock = Clock(target=4)
    assert clock.ready("n-10", "n-2", "n-1") == []
    (form,) = clock.ready("n-3")
    assert form == Form(1, ("n-1", "n-2", "n-3", "n-10"), "n-1:1")


def test_the_first_generation_waits_for_the_expected_nodes_and_then_takes_who_is_there() -> None:
    clock = Clock(expected=4, rendezvous_s=60.0)
    clock.ready("n-0", "n-1", "n-2")
    assert clock.pass_(59) == []
    (form,) = clock.pass_(2)
    assert form.nodes == ("n-0", "n-1"), "three nodes do not divide the lanes: two train, one stands by"


def test_after_everybody_has_left_the_next_group_waits_like_a_first_one_for_the_size_last_asked_for() -> None:
    clock = Clock(expected=2, rendezvous_s=60.0, join_timeout_s=math.inf)
    clock.ready("n-0", "n-1")
    for name in ("n-0", "n-1"):
        clock.members.leaving(name, clock.now)
    clock.exited("n-0", "n-1", status=143)
    for name in ("n-0", "n-1"):
        clock.members.gone(name, clock.now)
    assert clock.members.nodes == {}
    clock.pass_(3600)
    clock.members.rendezvous(4)
    assert clock.ready("m-0", "m-1") == []
    assert clock.pass_(59) == []
    assert clock.ready("m-2") == []
    (form,) = clock.ready("m-3")
    assert len(form.nodes) == 4
    assert clock.members.generation == 2


def test_those_who_came_back_train_without_the_others_when_the_bound_is_over() -> None:
    clock = Clock(expected=4, rendezvous_s=60.0)
    clock.members.rendezvous(4)
    clock.ready("m-0", "m-1")
    assert clock.pass_(59) == []
    (form,) = clock.pass_(2)
    assert form.nodes == ("m-0", "m-1")


def test_expected_nodes_are_no_limit_for_later_generations() -> None:
    clock = Clock(expected=1)
    clock.ready("n-0")
    clock.ready("n-1")
    (order,) = clock.pass_(1.1)
    assert order == Rerendezvous(1, "a node joined", drain=True)
    clock.exited("n-0")
    (form,) = clock.ready("n-0")
    assert form.nodes == ("n-0", "n-1")


def test_a_joiner_that_makes_no_allowed_size_stands_by_and_disturbs_nobody() -> None:
    clock = Clock(target=4)
    clock.ready("n-0", "n-1", "n-2", "n-3")
    clock.members.gone("n-3", clock.now)
    clock.exited("n-0", "n-1", "n-2", status=-9)
    clock.ready("n-0", "n-1", "n-2")
    (form,) = clock.pass_(2)
    assert len(form.nodes) == 2
    clock.ready("n-9")
    assert [a.nodes for a in clock.pass_(20) if isinstance(a, Form)] == []


def test_a_lost_member_stops_the_others_without_a_drain_and_spends_no_budget() -> None:
    clock = Clock(target=2, budget=0)
    clock.ready("n-0", "n-1")
    clock.members.gone("n-1", clock.now)
    (order,) = clock.members.decide(clock.now)
    assert (order.drain, order.reason) == (False, "lost n-1")
    clock.exited("n-0", status=1, error=crash())
    assert clock.members.finished is None
    assert (clock.members.counters.lost, clock.members.counters.failures) == (1, 0)


def test_two_silent_heartbeats_are_a_loss() -> None:
    clock = Clock(target=2)
    clock.ready("n-0", "n-1")
    clock.now += 9.9
    clock.members.beat("n-0", clock.now)
    assert clock.members.decide(clock.now) == []
    clock.now += 0.2
    assert clock.members.decide(clock.now) == [Rerendezvous(1, "lost n-1", drain=False)]


def test_a_leaving_node_drains_all_is_released_when_all_have_stopped_and_gets_no_new_place() -> None:
    clock = Clock(target=2)
    clock.ready("n-0", "n-1")
    clock.members.leaving("n-0", clock.now)
    assert clock.members.decide(clock.now) == [Rerendezvous(1, "a node leaves", drain=True)]
    assert clock.exited("n-0", status=143) == []
    actions = clock.exited("n-1", status=75)
    assert Release("n-0") in actions
    (form,) = [*clock.ready("n-1"), *clock.pass_(6)]
    assert form.nodes == ("n-1",)
    assert clock.members.counters.failures == 0


def test_a_node_that_is_asked_to_leave_after_its_workers_ended_is_released_at_once_and_keeps_nobody_waiting() -> None:
    """Several nodes leave, and the last one hears of it when the first one's leaving has ended the generation."""
    clock = Clock(expected=4)
    clock.ready("n-0", "n-1", "n-2", "n-3")
    clock.members.leaving("n-2", clock.now)
    clock.members.decide(clock.now)
    assert Release("n-2") in clock.exited("n-0", "n-1", "n-2", "n-3")
    assert clock.ready("n-0", "n-1") == [], "the fourth node may come back as ready in a moment"
    clock.members.leaving("n-3", clock.now)
    released, form = clock.members.decide(clock.now)
    assert released == Release("n-3")
    assert form == Form(2, ("n-0", "n-1"), "n-0:1")
    assert clock.members.decide(clock.now) == [], "released twice"


def test_all_zero_finishes_with_zero_and_one_zero_waits() -> None:
    clock = Clock(target=2)
    clock.ready("n-0", "n-1")
    assert clock.exited("n-0", status=0) == []
    assert clock.pass_(1000) == []
    assert clock.exited("n-1", status=0) == [Finish(0, "all steps are done")]


def test_status_65_is_final() -> None:
    clock = Clock(target=2)
    clock.ready("n-0", "n-1")
    clock.exited("n-0", status=65, error=crash(status=65))
    (finish,) = clock.exited("n-1", status=1, error=crash(1, time=2.0))
    assert finish.status == 65
    assert "rank 0" in finish.cause


def test_a_crash_before_the_first_step_is_final_but_not_when_a_signal_killed_it() -> None:
    clock = Clock(target=1)
    clock.ready("n-0")
    clock.exited("n-0", status=-9, error=crash(status=-9))
    assert clock.members.finished is None
    clock.ready("n-0")
    *_, finish = clock.exited("n-0", status=1, error=crash())
    assert "before the first step" in finish.cause


@pytest.mark.parametrize("budget", [0, 2])
def test_crashes_without_a_new_checkpoint_end_the_job_after_the_budget_and_a_checkpoint_restores_it(budget: int) -> None:
    clock = Clock(target=1, budget=budget)
    for round_ in range(3):
        clock.members.progress(step=round_ + 1, checkpoint=round_)
        for _ in range(budget):
            clock.ready("n-0")
            clock.exited("n-0", status=1, error=crash())
            assert clock.members.finished is None
    clock.ready("n-0")
    clock.exited("n-0", status=1, error=crash())
    assert clock.members.finished is not None
    assert f"{budget + 1} crashes without a new checkpoint" in clock.members.finished.cause


def test_resizes_and_drains_never_spend_the_budget() -> None:
    clock = Clock(target=1, budget=0)
    clock.ready("n-0")
    clock.members.progress(step=1, checkpoint=-1)
    for target in (2, 1, 2, 1):
        clock.members.rescale(target, clock.now)
        if target == 2:
            clock.ready("n-1")
            clock.pass_(2)
        else:
            clock.members.leaving("n-1", clock.now)
            clock.members.decide(clock.now)
        clock.exited(*clock.members.members)
        if target == 1:
            clock.members.gone("n-1", clock.now)
        clock.ready(*(f"n-{i}" for i in range(target)))
        assert len(clock.members.members) == target
    assert clock.members.finished is None
    assert clock.members.counters.failures == 0


def test_a_worker_that_ignores_the_drain_is_given_up_with_its_node() -> None:
    clock = Clock(target=2, drain_s=10.0)
    clock.ready("n-0", "n-1")
    clock.members.leaving("n-1", clock.now)
    clock.members.decide(clock.now)
    clock.exited("n-1", status=143)
    assert clock.pass_(19) == []
    clock.pass_(2)
    assert "n-0" not in clock.members.nodes


def test_fewer_than_the_minimum_for_too_long_ends_the_job_with_a_reason() -> None:
    clock = Clock(minimum=2, target=2, join_timeout_s=30.0)
    clock.ready("n-0")
    assert clock.pass_(29) == []
    (finish,) = clock.pass_(2)
    assert finish.status == 1
    assert "fewer than 2 nodes" in finish.cause


def test_a_new_coordinator_adopts_the_running_generation_and_numbers_go_on() -> None:
    clock = Clock(target=2, generation=7)
    clock.members.adopt(("n-0", "n-1"), clock.now)
    clock.members.hello("n-0", clock.now, generation=7)
    clock.members.hello("n-1", clock.now, generation=7)
    assert clock.pass_(1) == []
    assert clock.members.active
    clock.members.gone("n-1", clock.now)
    clock.members.decide(clock.now)
    clock.exited("n-0", status=-9)
    clock.ready("n-0")
    (form,) = clock.pass_(2)
    assert form.generation == 8


def test_a_new_coordinator_waits_longer_for_the_nodes_of_the_one_before_it_than_for_those_it_has_met() -> None:
    clock = Clock(target=2, generation=7, heartbeat_s=2.0, return_s=45.0)
    clock.members.adopt(("n-0", "n-1"), clock.now)
    clock.now += 40  # the name of the coordinator led to the old address until now
    assert clock.members.decide(clock.now) == []
    clock.members.hello("n-0", clock.now, generation=7)
    clock.now += 4.1
    clock.members.beat("n-0", clock.now)
    assert clock.members.decide(clock.now) == []
    clock.now += 5
    clock.members.beat("n-0", clock.now)
    assert clock.members.decide(clock.now) == [Rerendezvous(7, "lost n-1", drain=False)]


def test_a_node_that_has_found_the_new_coordinator_is_lost_after_two_silent_heartbeats() -> None:
    clock = Clock(target=1, generation=7, heartbeat_s=2.0)
    clock.members.adopt(("n-0",), clock.now)
    clock.members.hello("n-0", clock.now, generation=7)
    clock.now += 4.1
    assert clock.members.decide(clock.now)[0] == Rerendezvous(7, "lost n-0", drain=False)


def test_nobody_is_waited_for_longer_whose_run_has_been_stopped_since() -> None:
    clock = Clock(target=1, generation=7, heartbeat_s=2.0)
    clock.members.adopt(("n-0",), clock.now, returning=False)
    clock.now += 4.1
    assert clock.members.decide(clock.now)[0] == Rerendezvous(7, "lost n-0", drain=False)


def test_an_adopted_node_that_has_lost_its_workers_meanwhile_leads_to_a_new_generation() -> None:
    clock = Clock(target=1, generation=3)
    clock.members.adopt(("n-0",), clock.now)
    actions = clock.ready("n-0")
    assert actions == [Rerendezvous(3, "a node drained", drain=True), Form(4, ("n-0",), "n-0:1")]


def test_reports_of_an_older_generation_change_nothing() -> None:
    clock = Clock(target=1)
    clock.ready("n-0")
    clock.members.exited("n-0", clock.now, generation=0, exits={0: 1}, error=crash())
    assert clock.members.decide(clock.now) == []
    assert clock.members.nodes["n-0"].state == "working"


def test_a_survivor_that_stops_20_s_after_the_others_meets_them_in_one_generation() -> None:
    """One of four is killed, and another needs long to end its workers: nobody starts without it, nobody gives up."""
    clock = Clock(target=4, allowed=lambda n: True)
    clock.ready("n-0", "n-1", "n-2", "n-3")
    clock.members.gone("n-3", clock.now)
    clock.members.decide(clock.now)
    clock.exited("n-0", "n-1", status=-9)
    for _ in range(20):
        assert clock.pass_(1) == []
    clock.exited("n-2", status=-9)
    assert clock.ready("n-0", "n-1", "n-2") == []
    (form,) = clock.pass_(1.1)
    assert form == Form(2, ("n-0", "n-1", "n-2"), "n-0:1")
    assert (clock.members.counters.failures, clock.members.counters.lost) == (0, 1)
