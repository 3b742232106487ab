"""Real agents and gloo workers on this machine: the situations that elastic jobs meet."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.agent.toy import Toy
from zephon.errors import ConfigError
from zephon.launch import control

Maker = Callable[..., Toy]
pytestmark = pytest.mark.slow  # every test starts real agents, which import torch


def steps_of(toy: Toy) -> list[int]:
    return [line["step"] for line in toy.lines()]


def assert_every_step_once(toy: Toy) -> None:
    assert steps_of(toy) == list(range(1, toy.settings["steps"] + 1)), toy.story()


def test_one_two_one_three_nodes_lose_no_step_and_keep_the_agents_that_stay(toy: Maker) -> None:
    run = toy(nodes=1, steps=400, step_s=0.02, save_every=50).start()
    run.wait_step(5)
    first = run.agent(0).pid
    for nodes in (2, 1, 3):
        status = control.rescale(run.rundir, nodes, wait_s=30)
        assert (status.nodes, status.world_size) == (nodes, nodes), run.story()
    assert run.agent(0).pid == first
    run.wait_end()
    assert_every_step_once(run)
    assert run.status().failures == 0
    sizes = list(dict.fromkeys((line["generation"], line["world_size"]) for line in run.lines()))
    assert [size for _, size in sizes] == [1, 2, 1, 3]


@pytest.mark.parametrize("index", [0, 1])
def test_a_killed_agent_is_replaced_and_the_other_stays_though_it_hosted_the_store(toy: Maker, index: int) -> None:
    run = toy(nodes=2, steps=200, step_s=0.02, save_every=5).start()
    run.wait_step(10)
    other = run.agent(1 - index).pid
    victim = run.agent(index)
    workers = run.workers(index)
    victim.kill()
    run.wait(lambda now: now.generation >= 2 and now.nodes == 2)
    assert not any(worker.is_running() and worker.status() != "zombie" for worker in workers)
    assert run.agent(1 - index).pid == other
    run.wait_end()
    assert run.status().state == "DONE"
    assert sorted(set(steps_of(run))) == list(range(1, 201))
    assert (run.status().failures, run.status().lost) == (0, 1)


PARTS = ["drain", "save", "membership", "restore", "first_step"]


def test_a_lone_node_that_drains_and_is_replaced_is_one_resize_without_a_lost_step(toy: Maker) -> None:
    run = toy(nodes=1, steps=150, step_s=0.03, save_every=1000).start()
    run.wait_step(10)
    os.kill(run.agent(0).pid, signal.SIGTERM)
    run.wait_end()
    assert_every_step_once(run)
    (event,) = run.events("resized")
    assert (event["nodes_before"], event["nodes"], event["lost_steps"]) == (1, 1, 0)
    assert (event["step_before"], event["generation"]) == (run.lines()[event["step_before"] - 1]["step"], 2)
    assert [line["generation"] for line in run.lines()].count(1) == event["step_before"]
    assert list(event["parts_s"]) == PARTS
    assert event["parts_s"]["membership"] > 0, "another agent had to start"
    assert event["stall_s"] == pytest.approx(sum(event["parts_s"].values()), abs=1.0)


def test_a_node_that_is_asked_to_leave_soon_after_each_start_is_replaced_each_time(toy: Maker) -> None:
    run = toy(nodes=1, steps=100_000, step_s=0.02, save_every=1000).start()
    for generation in range(1, 6):  # more often than a broken agent may end within seconds
        run.wait(lambda now, generation=generation: now.generation == generation and now.state == "TRAINING")
        os.kill(run.agent(0).pid, signal.SIGTERM)
    status = run.wait(lambda now: now.generation == 6 and now.state == "TRAINING")
    assert (status.failures, status.lost) == (0, 0)
    assert control.stop(run.rundir).state == "STOPPED"
    assert steps_of(run) == list(range(1, len(steps_of(run)) + 1)), "no step was lost or trained twice"


def test_a_lone_node_that_is_killed_counts_the_steps_that_its_successor_trains_again(toy: Maker) -> None:
    run = toy(nodes=1, steps=120, step_s=0.03, save_every=20).start()
    run.wait_step(30)
    run.agent(0).kill()
    run.wait_end()
    again = len(steps_of(run)) - len(set(steps_of(run)))
    (event,) = run.events("resized")
    assert (event["nodes_before"], event["nodes"], event["lost_steps"]) == (1, 1, again), run.story()
    assert again > 0
    assert event["reason"].startswith("lost node-0")
    assert list(event["parts_s"]) == PARTS


def test_killing_and_restarting_one_agent_twenty_times_ends_with_all_steps(toy: Maker) -> None:
    run = toy(nodes=2, steps=150, step_s=0.02, save_every=5).start()
    run.wait_step(3)
    for number in range(20):
        run.agent(number % 2).kill()
        time.sleep(0.1 + 0.07 * (number % 5))
    run.wait_end(120)
    assert run.status().state == "DONE", run.story()
    assert sorted(set(steps_of(run))) == list(range(1, 151))


def freeze(run: Toy, index: int) -> list[Any]:
    agent = run.agent(index)
    tree = [agent, *agent.children(recursive=True)]
    for process in tree:
        process.suspend()
    return tree


def test_a_frozen_node_is_left_behind_within_three_heartbeats_and_may_come_back(toy: Maker) -> None:
    run = toy(nodes=2, steps=10_000, step_s=0.02, save_every=10, elastic={"heartbeat_s": 2.0}).start()
    run.wait_step(5)
    tree = freeze(run, 1)
    run.wait(lambda now: now.state == "DEGRADED", 2 * 2.0 + 1.0)
    run.wait(lambda now: now.generation == 2 and now.world_size == 1, 6.0)
    for process in tree:
        process.resume()
    run.wait(lambda now: now.world_size == 2 and now.nodes == 2, 20)
    assert run.agent(1).pid == tree[0].pid
    generations = [line["generation"] for line in run.lines()]
    assert generations == sorted(generations), "an old generation wrote after a new one"


def test_a_node_that_stays_frozen_is_killed_and_replaced(toy: Maker) -> None:
    run = toy(nodes=2, steps=10_000, step_s=0.02, save_every=10, elastic={"heartbeat_s": 0.5}).start()
    run.wait_step(5)
    tree = freeze(run, 1)
    run.wait(lambda now: now.generation >= 2 and now.world_size == 2 and now.nodes == 2, 20)
    assert run.agent(1).pid != tree[0].pid
    assert not any(process.is_running() and process.status() != "zombie" for process in tree)


def test_a_crash_before_the_first_step_is_not_tried_again(toy: Maker) -> None:
    run = toy(nodes=1, exit_at_start=3, elastic={"failure_budget": 5}).start()
    status = run.wait_end()
    assert (status.state, status.status, status.failures) == ("FAILED", 1, 1)
    assert "before the first step" in status.error
    assert len(run.events("generation")) == 1


def test_exit_status_65_ends_the_job_at_once_with_65(toy: Maker) -> None:
    run = toy(nodes=2, steps=50, faults={"7": 65}, fault_rank=1).start()
    status = run.wait_end()
    assert (status.state, status.status) == ("FAILED", 65)
    assert len(run.events("generation")) == 1


def test_crashes_without_a_new_checkpoint_spend_the_budget_and_resizes_do_not(toy: Maker) -> None:
    run = toy(nodes=1, steps=200, step_s=0.05, save_every=100, faults={"60": "raise"}, elastic={"failure_budget": 0}).start()
    run.wait_step(3)
    control.rescale(run.rundir, 2, wait_s=30)
    control.rescale(run.rundir, 1, wait_s=30)
    status = run.wait_end()
    assert (status.state, status.failures) == ("FAILED", 1)
    assert status.resizes >= 2
    assert "toy fault at step 60" in status.error


def test_a_crash_is_forgiven_while_checkpoints_grow(toy: Maker) -> None:
    faults = {"7": "raise", "14": "kill", "21": "raise"}
    run = toy(nodes=2, steps=25, faults=faults, fault_rank=1, elastic={"failure_budget": 1}).start()
    status = run.wait_end()
    assert (status.state, status.failures) == ("DONE", 3), run.story()


def test_a_crash_loop_ends_with_the_first_error_of_the_first_failing_rank(toy: Maker) -> None:
    run = toy(nodes=2, steps=50, faults={"8": "raise"}, fault_rank=1, fault_always=True, elastic={"failure_budget": 2}).start()
    status = run.wait_end()
    assert (status.state, status.failures) == ("FAILED", 3)
    assert "rank 1" in status.error
    assert "RuntimeError: toy fault at step 8" in status.error
    assert "crashes without a new checkpoint" in status.error


def test_a_worker_that_ends_first_waits_for_the_others_and_all_end_with_zero(toy: Maker) -> None:
    run = toy(nodes=2, steps=10, linger_s=3.0, linger_rank=1).start()
    status = run.wait_end()
    assert status.state == "DONE"
    assert [event["status"] for event in run.events("node_exited")] == [0, 0]


def test_sigterm_to_one_agent_drains_all_and_the_node_is_not_counted_as_a_failure(toy: Maker) -> None:
    run = toy(nodes=2, steps=150, step_s=0.03, save_every=1000).start()
    run.wait_step(10)
    os.kill(run.agent(1).pid, signal.SIGTERM)
    run.wait(lambda now: now.generation >= 2 and now.nodes == 2)
    run.wait_end()
    assert_every_step_once(run)
    assert (run.status().failures, run.status().lost) == (0, 0)


def test_a_stop_during_a_first_step_that_compiles_for_longer_than_a_drain_may_take_is_a_stop_that_lost_nothing(
    toy: Maker,
) -> None:
    run = toy(nodes=2, steps=40, step_s=0.05, save_every=100, elastic={"drain_s": 2.0}).start()
    run.wait_step(5)
    stopped = control.stop(run.rundir)
    run.settings["settle_s"] = 600  # the worker has its handler, and hears of nothing before its first step
    run.resume()
    run.wait(lambda now: now.attempt == 2 and now.generation > stopped.generation)
    again = control.stop(run.rundir)
    assert (again.state, again.step, again.checkpoint) == ("STOPPED", stopped.step, stopped.step)
    run.settings["settle_s"] = 0
    assert run.resume().wait_end().state == "DONE"
    assert [line["step"] for line in run.lines()] == list(range(1, 41)), "a step was lost or trained twice"


def test_a_rescale_outside_the_range_or_to_zero_is_refused_with_the_possible_counts(toy: Maker) -> None:
    run = toy(nodes=1, steps=10_000, step_s=0.05, elastic={"nodes_max": 3}).start()
    run.wait_step(1)
    for nodes in (0, 4):
        with pytest.raises(ConfigError, match="nodes=1, 2, 3"):
            control.rescale(run.rundir, nodes)
    assert run.status().target == 1


def test_stop_saves_the_step_it_is_in_and_resume_goes_on_from_there(toy: Maker) -> None:
    run = toy(nodes=2, steps=60, step_s=0.03, save_every=1000).start()
    run.wait_step(8)
    stopped = control.stop(run.rundir)
    assert stopped.state == "STOPPED"
    assert stopped.checkpoint == stopped.step == steps_of(run)[-1]
    run.resume("nodes=1")
    run.wait_end()
    assert_every_step_once(run)


def test_a_worker_that_ignores_the_drain_is_killed_after_the_one_grace_that_there_is(toy: Maker) -> None:
    run = toy(nodes=2, steps=100_000, step_s=0.02, save_every=100_000, deaf=True, elastic={"drain_s": 2.0}).start()
    run.wait_step(6)
    began = time.monotonic()
    status = control.stop(run.rundir, wait_s=20)
    assert (status.state, status.status) == ("FAILED", 1), run.story()
    assert status.message.startswith("the drain took longer than elastic.drain_s=2 s; ")
    assert status.message.endswith(f"{status.step} steps were lost (the last checkpoint is of step 0)")
    assert 1.5 < time.monotonic() - began < 12.0
    assert all(event["status"] == 143 for event in run.events("node_exited"))


def test_a_rank_that_fails_inside_a_drain_makes_the_stop_a_failure_with_its_cause(toy: Maker) -> None:
    run = toy(nodes=2, steps=100_000, step_s=0.02, save_every=100_000, drain_fault=True).start()
    run.wait_step(6)
    status = control.stop(run.rundir, wait_s=20)
    assert (status.state, status.status) == ("FAILED", 1), run.story()
    assert "RuntimeError: toy fault in the drain" in status.message
    assert f"{status.step} steps were lost" in status.message
    assert "toy fault in the drain" in status.error


def test_a_worker_that_somebody_else_kills_says_so_with_its_peak_memory(toy: Maker) -> None:
    run = toy(nodes=1, steps=300, step_s=0.02, save_every=5, faults={"12": "kill"}).start()
    run.wait_step(13)
    (error,) = [event["error"] for event in run.events("workers_exited") if event["error"]]
    assert error["status"] == -9
    assert error["message"].startswith("killed by signal 9 (SIGKILL), not by us; peak memory 0.")
    assert "memory" in error["message"].partition("GiB; ")[2]


def test_a_crash_ends_the_other_nodes_workers_within_seconds(toy: Maker) -> None:
    run = toy(
        nodes=2, steps=50, step_s=0.02, faults={"8": 3}, fault_rank=1, elastic={"failure_budget": 0, "drain_s": 300.0}
    ).start()
    run.wait_step(5)
    began = time.monotonic()
    status = run.wait_end(30)
    assert time.monotonic() - began < 15
    assert (status.state, status.failures) == ("FAILED", 1)
    assert "rank 1" in status.error


def test_a_stuck_rank_is_named_with_its_stack_and_replaced(toy: Maker) -> None:
    elastic = {"stall_s": 3.0, "failure_budget": 1}
    run = toy(nodes=2, steps=30, step_s=0.02, save_every=5, faults={"12": "hang"}, fault_rank=1, elastic=elastic).start()
    status = run.wait_end()
    assert (status.state, status.failures) == ("DONE", 1), run.story()
    (order,) = [event for event in run.events("rerendezvous") if event["reason"].startswith("stalled")]
    assert "after step 11" in order["reason"]
    errors = [event["error"] for event in run.events("workers_exited") if (event["error"] or {}).get("stuck")]
    assert [(error["rank"], "in fault" in error["message"]) for error in errors] == [(1, True)]


def killed_supervisor(run: Toy) -> Any:
    os.kill(run.supervisor_pid(), signal.SIGKILL)
    return None


def test_kill_9_of_the_supervisor_leaves_no_process_and_resume_goes_on(toy: Maker) -> None:
    run = toy(nodes=2, steps=40, step_s=0.03, save_every=5).start()
    run.wait_step(12)
    workers = [w for i in (0, 1) for w in [run.agent(i), *run.workers(i)]]
    killed_supervisor(run)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and (
        run.status().state != "FAILED" or any(w.is_running() and w.status() != "zombie" for w in workers)
    ):
        time.sleep(0.05)
    assert not any(w.is_running() and w.status() != "zombie" for w in workers)
    assert run.status().state == "FAILED"
    assert "killed" in run.status().message
    run.resume()
    assert run.wait_end().state == "DONE"
    assert sorted(set(steps_of(run))) == list(range(1, 41))
