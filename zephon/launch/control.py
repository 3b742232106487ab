"""Stops and rescales a running attempt: asks its backend, and waits for the result."""

from __future__ import annotations

import time
from collections.abc import Callable

from zephon.errors import ConfigError
from zephon.launch.backends.registry import backend_of
from zephon.launch.status import LIVE, RunStatus, status_of
from zephon.run.directory import RunDir
from zephon.run.events import EventReader
from zephon.run.specs import newest_spec

UNSETTLED = ("QUEUED", "STARTING")


def stop(rundir: RunDir, *, wait_s: float | None = None) -> RunStatus:
    """Drains the running attempt: the step is finished and saved. Waits for the end unless ``wait_s`` is 0."""
    status = status_of(rundir)
    if status.state not in LIVE:
        return status
    backend_of(rundir, status.attempt).stop(rundir, status.attempt)
    if wait_s == 0:
        return status_of(rundir)
    limit = wait_s if wait_s is not None else newest_spec(rundir).elastic.drain_s + 30.0
    return wait_for(rundir, lambda now: now.state not in LIVE, limit, "to stop")


def rescale(rundir: RunDir, nodes: int, *, wait_s: float | None = None) -> RunStatus:
    """Changes the number of nodes of a running attempt; returns when steps are made at the new size.

    An attempt on this machine that has just been started takes the change after its first step.

    Raises:
        ConfigError: not possible for this run, or not settled in time.
    """
    spec, status = newest_spec(rundir), status_of(rundir)
    backend = backend_of(rundir, status.attempt)
    if status.state in UNSETTLED and not backend.rescales_at_once:
        status = wait_for(rundir, lambda now: now.state not in UNSETTLED, spec.elastic.join_timeout_s, "to make its first step")
    backend.rescale(rundir, status.attempt, nodes)
    if wait_s == 0:
        return status_of(rundir)
    world, generation = nodes * spec.elastic.procs_per_node, status.generation
    unchanged = status.nodes == nodes == status.target

    def settled(now: RunStatus) -> bool:
        reached = now.nodes == nodes and now.world_size == world and now.state == "TRAINING"
        resized = now.resize is not None and now.resize.generation > generation
        return now.state not in LIVE or (reached and (unchanged or resized))

    limit = wait_s if wait_s is not None else spec.elastic.drain_s + 60.0
    return wait_for(rundir, settled, limit, f"to settle at nodes={nodes}")


def wait_for(rundir: RunDir, test: Callable[[RunStatus], bool], limit_s: float, what: str) -> RunStatus:
    """Asks for the run's status until a test holds.

    Raises:
        ConfigError: it did not within ``limit_s`` seconds.
    """
    deadline, events = time.monotonic() + limit_s, EventReader(rundir)
    while True:
        status = status_of(rundir, events=events)
        if test(status):
            return status
        if time.monotonic() > deadline:
            raise ConfigError(
                f"{status.name} took longer than {limit_s:g} s {what} (it is {status.state} at step {status.step})",
                follows="the command would wait without end",
                remedy="look at `status` and `logs`; the backend has the order and may still carry it out",
            )
        time.sleep(0.1)
