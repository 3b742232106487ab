"""The walk over a run's stages, without processes and without a run directory."""

from __future__ import annotations

from zephon.stages.stage import BUILT_IN, Stage
from zephon.stages.walk import StageEnd, Walk

FIRST, LAST = Stage(name="first", call="own:first"), Stage(name="last", call="own:last")
ALL = [FIRST, BUILT_IN["train"], LAST]
DONE = StageEnd("done", 0, "it is done")


def names(walk: Walk, end: StageEnd = DONE, *, trained: bool = False) -> list[str]:
    """The stages that a walk carries out when each ends like this."""
    found = []
    while (stage := walk.next(trained=trained)) is not None:
        found.append(stage.name)
        walk.begin()
        walk.end(end)
    return found


def test_stages_are_due_in_order_until_all_are_done() -> None:
    walk = Walk(ALL)
    assert names(walk) == ["first", "train", "last"]
    assert walk.states == {"first": "done", "train": "done", "last": "done"}
    assert walk.finish == StageEnd("done", 0, "all stages are done")
    assert walk.stage == ""


def test_a_stage_is_due_until_it_has_ended() -> None:
    walk = Walk(ALL)
    assert walk.next(trained=False) is walk.next(trained=False) is FIRST
    assert (walk.stage, walk.states["first"]) == ("first", "waiting")
    walk.begin()
    assert walk.states == {"first": "running", "train": "waiting", "last": "waiting"}


def test_a_stage_that_fails_ends_the_attempt_with_its_own_status_and_cause() -> None:
    walk, failed = Walk(ALL), StageEnd("failed", 65, "stage first failed: no such file")
    assert names(walk, failed) == ["first"]
    assert walk.finish == failed
    assert walk.states == {"first": "failed", "train": "waiting", "last": "waiting"}


def test_a_walk_that_is_taken_up_again_passes_over_what_is_over_and_repeats_what_is_not() -> None:
    assert names(Walk(ALL, {"first": "skipped", "train": "done", "last": "running"})) == ["last"]
    assert names(Walk(ALL, {"first": "stopped"})) == ["first", "train", "last"]


def test_a_training_whose_steps_are_all_saved_is_skipped_and_the_stages_after_it_are_due() -> None:
    walk = Walk(ALL)
    assert names(walk, trained=True) == ["first", "last"]
    assert walk.states["train"] == "skipped"


def test_a_training_that_ended_while_nobody_watched_is_done_and_not_skipped() -> None:
    walk = Walk(ALL, {"first": "done", "train": "running"})
    assert names(walk, trained=True) == ["last"]
    assert walk.states["train"] == "done"


def test_training_alone_is_carried_out_in_any_case_and_its_end_is_the_attempts() -> None:
    walk, end = Walk([BUILT_IN["train"]]), StageEnd("done", 0, "all steps are done")
    assert names(walk, end, trained=True) == ["train"]
    assert walk.finish == end


def test_a_stage_that_is_put_back_is_still_due() -> None:
    walk = Walk(ALL)
    walk.next(trained=False)
    walk.begin()
    walk.put_back("stopped")
    assert walk.states["first"] == "stopped"
    assert walk.next(trained=False) is FIRST


def test_a_stop_between_two_stages_leaves_the_rest_waiting() -> None:
    walk = Walk(ALL)
    walk.next(trained=False)
    walk.end(DONE)
    walk.stop()
    assert walk.next(trained=False) is None
    assert walk.finish is not None
    assert walk.finish.status == 143
    assert walk.states == {"first": "done", "train": "waiting", "last": "waiting"}
