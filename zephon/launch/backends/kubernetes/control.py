"""A run on Kubernetes as the launcher's verbs see it: what ``local`` gives for this machine, from the API server.

    read_state(rundir, attempt)   state, members, target, generation, message   (the shape of supervisor.json)
    command(rundir, attempt, {"verb": "stop" | "resume" | "rescale" | "delete", ...})

The membership is read from the run directory, where the coordinator writes it; everything else from the Job and its pods.
A cluster that does not answer is not a failed job: the last known size is shown, and the message says so.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Mapping
from typing import Any

from torchx.specs import AppState, parse_app_handle

from zephon.agent.rules import allowed_nodes
from zephon.errors import ConfigError
from zephon.exits import Exit
from zephon.launch.backends.kubernetes.errors import ClusterError
from zephon.launch.backends.kubernetes.options import KubernetesOptions, options_from
from zephon.launch.backends.kubernetes.scheduler import KubernetesScheduler
from zephon.launch.backends.kubernetes.status import Summary
from zephon.run.attempt_stages import read_attempt_stages
from zephon.run.data_end import ended_at
from zephon.run.directory import RunDir
from zephon.run.events import Event, EventReader
from zephon.run.generation import read_generation
from zephon.run.handle import read_handle
from zephon.run.progress import read_progress
from zephon.run.specs import read_spec
from zephon.run.stop import write_stop
from zephon.run.target import write_target
from zephon.stages.stage import TRAIN

_LOOK_RETRY_S = 10.0


def read_state(rundir: RunDir, attempt: int, events: EventReader) -> dict[str, Any]:
    """How the attempt's Job stands, in the words of the local supervisor's state file."""
    scheduler, app_id = _scheduler(rundir, attempt, retry_s=_LOOK_RETRY_S)
    newest = read_generation(rundir)
    current = newest if newest is not None and newest.attempt == attempt else None
    members = list(current.nodes) if current else []
    state: dict[str, Any] = {"app_id": app_id, "members": members, "target": len(members), "status": None}
    state |= _history(events.of_attempt(attempt)) | _stages(rundir, attempt)
    state["generation"] = current.generation if current else 0
    try:
        summary = scheduler.summary(app_id)
    except ClusterError as error:
        return _in_stage(state) | {"state": "RUNNING", "message": f"the cluster does not answer: {error.what}"}
    if summary is None:
        done = _finished(rundir, attempt, state)
        text = "" if done else "the job is no longer in the cluster; resume starts a new attempt"
        return _in_stage(state | {"state": "DONE" if done else "STOPPED", "members": [], "message": text})
    there = {node.pod for node in summary.nodes if node.state == AppState.RUNNING}
    state["members"] = [name for name in members if name.split("@")[0] in there]
    return _in_stage(state | {"target": summary.wanted, **_words(summary)})


def _history(events: list[Event]) -> dict[str, Any]:
    """What the attempt's events say: the last resize, and how often what happened."""
    resizes = [event for event in events if event.kind == "resized"]
    lost = [event for event in events if event.kind == "rerendezvous" and str(event.details["reason"]).startswith("lost")]
    failures = [event for event in events if event.kind == "workers_exited" and event.details.get("error")]
    counters = {"failures": len(failures), "lost": len(lost), "resizes": len(resizes)}
    return {"resize": dict(resizes[-1].details) if resizes else None, "counters": counters}


def _stages(rundir: RunDir, attempt: int) -> dict[str, Any]:
    """How the attempt's stages stand, by its coordinator; nothing where training is all."""
    order = read_spec(rundir, attempt).stages.order
    known = read_attempt_stages(rundir, attempt)
    states = [[*entry] for entry in known.states.items()] or [[name, "waiting"] for name in order]
    return {"stages": states if len(order) > 1 else [], "stage": known.stage, "stage_node": known.node}


def _in_stage(state: dict[str, Any]) -> dict[str, Any]:
    """A state with words for the stage that is under way; one whose job was stopped is stopped."""
    stage, node = state["stage"], str(state.pop("stage_node")).split("@")[0]
    if state.get("state") == "STOPPED":
        state["stages"] = [[name, "stopped" if is_at == "running" else is_at] for name, is_at in state["stages"]]
    elif stage not in ("", TRAIN) and state.get("state") in ("RUNNING", "STARTING"):
        state["message"] = f"stage {stage}{f' on {node}' if node else ''}; {state['message']}"
    return state


def _words(summary: Summary) -> dict[str, Any]:
    if summary.state == AppState.RUNNING:
        return {"state": "DRAINING" if summary.line.startswith("stopping") else "RUNNING", "message": summary.line}
    if summary.state == AppState.PENDING:
        return {"state": "QUEUED" if summary.line.startswith("waiting in the queue") else "STARTING", "message": summary.line}
    if summary.state == AppState.SUCCEEDED:
        return {"state": "DONE", "status": int(Exit.DONE), "message": "", "members": []}
    stopped = summary.state == AppState.CANCELLED
    return {
        "state": "STOPPED" if stopped else "FAILED",
        "status": int(Exit.LEFT if stopped else Exit.FAILED),
        "message": summary.line,
        "members": [],
    }


def command(rundir: RunDir, attempt: int, message: Mapping[str, Any]) -> str:
    """Carries out one verb on the attempt's Job; returns a sentence on what happens.

    Raises:
        ConfigError: the verb cannot apply to this Job.
        ClusterError: the API server refused or did not answer.
    """
    scheduler, app_id = _scheduler(rundir, attempt, retry_s=60.0)
    verb = message["verb"]
    if verb == "rescale":
        _check_size(rundir, attempt, int(message["nodes"]))
        note = scheduler.rescale(app_id, int(message["nodes"])).note
        with contextlib.suppress(OSError):  # the coordinator has no right to read the Job; without this it may gather in steps
            write_target(rundir, attempt, int(message["nodes"]))
        return note
    actions = {"stop": scheduler.stop, "resume": scheduler.resume, "delete": scheduler.delete}
    if verb not in actions:
        raise ConfigError(
            f"verb {verb!r} is unknown", follows="nothing was done", remedy=f"one of {', '.join(actions)}, rescale"
        )
    actions[verb](app_id)
    if verb == "stop":
        with contextlib.suppress(OSError):  # as above; without this a resume within minutes is told as a replaced node
            write_stop(rundir, attempt)
    return ""


def log_lines(rundir: RunDir, attempt: int, index: int, *, follow: bool) -> Iterable[str]:
    """The log of one node's pods with newlines, from the cluster to which this attempt was submitted."""
    scheduler, app_id = _scheduler(rundir, attempt, retry_s=60.0)
    return scheduler.log_iter(app_id, "node", index, should_tail=follow)


def preview(rundir: RunDir, attempt: int, nodes: int) -> str:
    """What a rescale would do to the pods; refuses what ``rescale`` would refuse."""
    scheduler, app_id = _scheduler(rundir, attempt, retry_s=60.0)
    _check_size(rundir, attempt, nodes)
    return scheduler.preview(app_id, nodes)


def _check_size(rundir: RunDir, attempt: int, nodes: int) -> None:
    """Refuses a size among which the lanes cannot be divided: its pods would only stand by. 0 is the scheduler's to refuse.

    So is a change in a stage in which nobody trains.
    """
    stage = read_attempt_stages(rundir, attempt).stage
    if stage not in ("", TRAIN):
        raise ConfigError(
            f"the run is in stage {stage}, for which one node is enough",
            follows="there would be nothing to divide",
            remedy="repeat the command when it trains; `status` shows its stages",
        )
    spec = read_spec(rundir, attempt)
    allowed = allowed_nodes(spec)
    if nodes == 0 or allowed(nodes):
        return
    fits = [n for n in range(spec.elastic.nodes_min, spec.elastic.nodes_max + 1) if allowed(n)]
    raise ConfigError(
        f"nodes={nodes} does not divide the {spec.lanes.count} lanes of this run",
        follows="some of the nodes would only stand by",
        remedy=f"use one of nodes={', '.join(map(str, fits))}, or start with lanes.allow=uneven",
    )


def _finished(rundir: RunDir, attempt: int, state: Mapping[str, Any]) -> bool:
    if any(is_at not in ("done", "skipped") for _, is_at in state["stages"]):
        return False
    progress = read_progress(rundir, attempt)
    return progress is not None and (progress.step >= progress.steps or ended_at(rundir) == progress.step)


def _scheduler(rundir: RunDir, attempt: int, *, retry_s: float) -> tuple[KubernetesScheduler, str]:
    handle = read_handle(rundir, attempt)
    assert handle is not None, "the caller knows the scheduler from it"
    _, _, app_id = parse_app_handle(handle.handle)
    options = options_from(read_spec(rundir, attempt).scheduler.options)
    return _connected(options.namespace, options.kubeconfig, options.context, options.request_timeout_s, retry_s), app_id


@functools.lru_cache(maxsize=8)
def _connected(
    namespace: str, kubeconfig: str | None, context: str | None, timeout_s: float, retry_s: float
) -> KubernetesScheduler:
    """One connection per cluster: a display looks several times a second."""
    options = KubernetesOptions(namespace=namespace, kubeconfig=kubeconfig, context=context, request_timeout_s=timeout_s)
    return KubernetesScheduler("zephon", options, retry_s=retry_s)
