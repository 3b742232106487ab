"""The account of a resize, from made-up times."""

from __future__ import annotations

from typing import Any

from zephon.agent.resizes import Resizes
from zephon.run.progress import Progress


def progress(step: int, time: float, generation: int, **more: Any) -> Progress:
    return Progress(step=step, steps=99, time=time, generation=generation, **more)


def test_a_drained_resize_is_accounted_part_by_part_and_loses_no_step() -> None:
    resizes = Resizes()
    resizes.ordered("a node joined", 100.0, nodes=1)
    for stopped in (100.8, 101.0):
        resizes.stopped(stopped)
    assert not resizes.settling
    resizes.formed(2, 101.1, nodes=2, progress=progress(10, 100.2, 1))
    assert resizes.settling
    assert resizes.progress(progress(10, 100.2, 1)) is None, "the old generation's word is no step of the new one"
    event = resizes.progress(progress(11, 102.0, 2, step_s=0.3))
    assert event == {
        "reason": "a node joined",
        "generation": 2,
        "nodes_before": 1,
        "nodes": 2,
        "step_before": 10,
        "step_after": 11,
        "lost_steps": 0,
        "stall_s": 1.8,
        "parts_s": {"drain": 0.2, "save": 0.8, "membership": 0.1, "restore": 0.6, "first_step": 0.3},
    }
    assert not resizes.settling
    assert resizes.progress(progress(12, 102.3, 2)) is None


def test_a_lost_node_counts_the_steps_that_are_trained_again() -> None:
    resizes = Resizes()
    resizes.ordered("lost node-1@1", 50.0, nodes=2)
    resizes.formed(5, 50.5, nodes=1, progress=progress(48, 49.9, 4))
    event = resizes.progress(progress(41, 51.5, 5))
    assert event is not None
    assert event["lost_steps"] == 8
    assert all(seconds >= 0 for seconds in event["parts_s"].values())


def test_steps_that_only_the_ledger_knows_are_lost_too() -> None:
    resizes = Resizes()
    resizes.ordered("lost node-0@1", 50.0, nodes=1)
    resizes.formed(5, 53.0, nodes=1, progress=progress(48, 49.9, 4))
    event = resizes.progress(progress(43, 54.5, 5, began=40, recorded=49))
    assert event is not None
    assert (event["step_before"], event["lost_steps"]) == (49, 9)


def test_a_start_is_no_resize() -> None:
    resizes = Resizes()
    resizes.formed(1, 10.0, nodes=2, progress=None)
    assert resizes.progress(progress(1, 12.0, 1)) is None
    resizes.ordered("a node joined", 13.0, nodes=2)
    resizes.formed(2, 14.0, nodes=3, progress=None)
    assert not resizes.settling


def test_orders_that_follow_each_other_are_one_resize_from_the_first() -> None:
    resizes = Resizes()
    resizes.ordered("a node leaves", 10.0, nodes=3)
    resizes.ordered("lost node-2@1", 11.0, nodes=3)
    resizes.formed(2, 12.0, nodes=1, progress=progress(5, 10.1, 1))
    event = resizes.progress(progress(6, 13.0, 2))
    assert event is not None
    assert (event["reason"], event["nodes_before"]) == ("a node leaves", 3)
