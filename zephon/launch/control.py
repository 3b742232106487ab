"""Who carries out the verbs of a run: the supervisor on this machine, or the cluster to which the attempt was submitted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from zephon.launch.backends.local import scheduler as local
from zephon.run.directory import RunDir
from zephon.run.events import EventReader
from zephon.run.handle import read_handle


def scheduler_of_attempt(rundir: RunDir, attempt: int) -> str:
    """Name of the scheduler that got the attempt; ``local`` where nothing is recorded (yet)."""
    handle = read_handle(rundir, attempt)
    return handle.scheduler if handle else "local"


def read_state(rundir: RunDir, attempt: int, events: EventReader) -> dict[str, Any] | None:
    """How the attempt stands in the words of supervisor.json; None when nobody knows it."""
    if scheduler_of_attempt(rundir, attempt) == "kubernetes":
        from zephon.launch.backends.kubernetes import control as kubernetes_control

        return kubernetes_control.read_state(rundir, attempt, events)
    return local.read_state(rundir, attempt)


def command(rundir: RunDir, attempt: int, message: Mapping[str, Any]) -> None:
    """Sends one order, ``{"verb": "stop"}`` or ``{"verb": "rescale", "nodes": N}``, to whoever runs the attempt."""
    if scheduler_of_attempt(rundir, attempt) == "kubernetes":
        from zephon.launch.backends.kubernetes import control as kubernetes_control

        kubernetes_control.command(rundir, attempt, message)
    else:
        local.command(rundir, attempt, message)


def log_lines(rundir: RunDir, attempt: int, index: int, *, follow: bool) -> Iterable[str]:
    """The log of one node of an attempt on a cluster."""
    from zephon.launch.backends.kubernetes import control as kubernetes_control

    return kubernetes_control.log_lines(rundir, attempt, index, follow=follow)


def preview(rundir: RunDir, attempt: int, nodes: int) -> str:
    """What a rescale would do to the nodes, where the scheduler can say it; empty otherwise."""
    if scheduler_of_attempt(rundir, attempt) == "kubernetes":
        from zephon.launch.backends.kubernetes import control as kubernetes_control

        return kubernetes_control.preview(rundir, attempt, nodes)
    return ""
