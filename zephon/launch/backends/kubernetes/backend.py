"""The backend ``kubernetes``: a plain Indexed Job per attempt, whose state is put together from two places.

    run directory   members, generation, stages, history: where the coordinator and the nodes write them
    API server      everything else: the Job, its pods, and why they wait

A cluster that does not answer is not a failed job: its state is UNKNOWN, beside what the run directory says. A Job
counts only when its UID is the one that the submit recorded (run/placement.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Sequence

from zephon.agent.rules import allowed_nodes
from zephon.errors import ConfigError
from zephon.exits import Exit
from zephon.fastjson import Json
from zephon.launch.backends.kubernetes.client import Cluster
from zephon.launch.backends.kubernetes.errors import ClusterError, Forbidden, unknown_line
from zephon.launch.backends.kubernetes.history import failed_drain, history, record_causes, record_gone
from zephon.launch.backends.kubernetes.living import alive, attempt_labels, check_alone, end_orphans, orphaned
from zephon.launch.backends.kubernetes.manifest import Request
from zephon.launch.backends.kubernetes.options import KubernetesOptions, options_from
from zephon.launch.backends.kubernetes.placed import elsewhere_line, find_job, is_complete, nodes_url, placement_of, unsubmitted
from zephon.launch.backends.kubernetes.preflight import examine
from zephon.launch.backends.kubernetes.scheduler import KubernetesScheduler, create_scheduler
from zephon.launch.backends.kubernetes.status import Summary, has_ended
from zephon.launch.backends.submission import Torchx
from zephon.launch.job import Job
from zephon.run.attempt_stages import read_attempt_stages
from zephon.run.data_end import ended_at
from zephon.run.directory import RunDir
from zephon.run.events import Event, EventReader
from zephon.run.generation import read_generation
from zephon.run.lease import Lease
from zephon.run.placement import Placement, read_placement, write_placement
from zephon.run.progress import read_progress
from zephon.run.specs import read_spec
from zephon.run.state import AttemptState
from zephon.run.stop import write_stop
from zephon.run.target import write_target
from zephon.stages.stage import TRAIN

_COMMAND_RETRY_S = 60.0


class KubernetesBackend:
    """See ``Backend``.

    Args:
        state_retry_s: how long to wait for an API server that does not answer before the state is called UNKNOWN.
    """

    name = "kubernetes"
    here = False
    rescales_at_once = True

    def __init__(self, *, state_retry_s: float = 10.0) -> None:
        self._state_retry_s = state_retry_s
        self._torchx = Torchx(self.name, create_scheduler)
        self._schedulers: dict[tuple[object, ...], KubernetesScheduler] = {}

    def request(self, job: Job) -> object:
        return self._torchx.request(job, job.spec.scheduler.options).request

    def check_alone(self, job: Job) -> None:
        options = options_from(job.spec.scheduler.options)
        check_alone(self._connected(options, _COMMAND_RETRY_S).connection, options.namespace, job.run)

    def submit(self, job: Job, lease: Lease) -> str:
        options, rundir = options_from(job.spec.scheduler.options), lease.rundir
        cluster, placed = self._connected(options, _COMMAND_RETRY_S).connection, list[Placement]()

        def begin(request: Request) -> None:
            placed.append(placement_of(cluster, request))
            write_placement(rundir, job.attempt, placed[0])

        handle = self._torchx.submit(job, job.spec.scheduler.options, begin=begin)
        if (created := find_job(cluster, placed[0])) is not None:
            write_placement(rundir, job.attempt, dataclasses.replace(placed[0], job=created["metadata"]["uid"]))
        lease.release()  # the job on the cluster needs none; a laptop would have to renew it
        return handle

    def examine(self, job: Job) -> tuple[str, ...]:
        options = options_from(job.spec.scheduler.options)
        request: Request = self._torchx.request(job, job.spec.scheduler.options).request
        return examine(self._connected(options, self._state_retry_s).connection, request, options)

    def state(self, rundir: RunDir, attempt: int, events: EventReader) -> AttemptState | None:
        placement = read_placement(rundir, attempt)
        if placement is None:
            return None
        scheduler = self._connected(options_from(read_spec(rundir, attempt).scheduler.options), self._state_retry_s)
        so_far = events.of_attempt(attempt)
        recorded = _recorded(rundir, attempt, placement.app_id, so_far)
        try:
            state = self._asked(scheduler, placement, recorded, rundir, attempt, so_far)
        except ClusterError as error:
            state = dataclasses.replace(recorded, state="UNKNOWN", message=unknown_line(error))
        return _in_stage(state, rundir, attempt)

    def _asked(
        self,
        scheduler: KubernetesScheduler,
        placement: Placement,
        recorded: AttemptState,
        rundir: RunDir,
        attempt: int,
        events: Sequence[Event],
    ) -> AttemptState:
        """The state as the cluster has it."""
        cluster = scheduler.connection
        job = find_job(cluster, placement)
        if job is not None and not placement.job:
            if not is_complete(cluster, job):
                return unsubmitted(recorded, rundir, attempt, "the submit was cut off before all of its objects were there")
            with contextlib.suppress(OSError):  # its last answer was lost
                write_placement(rundir, attempt, dataclasses.replace(placement, job=job["metadata"]["uid"]))
        if job is not None:
            summary = scheduler.summary_of(job)
            record_causes(rundir, attempt, summary, events)
            if summary.pods_known:
                self._look_back(cluster, placement, rundir, attempt, {pod.uid for pod in summary.pods}, events)
            if summary.state == "STOPPED" and (failure := failed_drain(rundir, attempt, events)):
                summary = dataclasses.replace(summary, state="FAILED", line=failure)
            return _with_summary(recorded, summary)
        if line := elsewhere_line(cluster, placement):
            return dataclasses.replace(recorded, state="ELSEWHERE", message=line)
        pods = self._pods(cluster, placement, rundir, attempt)
        if living := alive(pods):
            return _with_summary(recorded, orphaned(living))
        if not placement.job:
            return unsubmitted(recorded, rundir, attempt, "the submit was cut off before anything of it was there")
        self._look_back(cluster, placement, rundir, attempt, {pod["metadata"]["uid"] for pod in pods}, events)
        return _gone(recorded, rundir, attempt)

    @staticmethod
    def _look_back(
        cluster: Cluster, placement: Placement, rundir: RunDir, attempt: int, there: Collection[str], events: Sequence[Event]
    ) -> None:
        with contextlib.suppress(Forbidden):  # the state itself does not depend on it
            record_gone(cluster, placement.app_id.partition(":")[0], rundir, attempt, there, events)

    @staticmethod
    def _pods(cluster: Cluster, placement: Placement, rundir: RunDir, attempt: int) -> list[Json]:
        labels = attempt_labels(nodes_url(rundir, attempt), attempt)
        return cluster.find("Pod", placement.app_id.partition(":")[0], labels=labels)

    def stop(self, rundir: RunDir, attempt: int) -> None:
        scheduler, app_id, job = self._found(rundir, attempt)
        if job is None:
            labels = attempt_labels(nodes_url(rundir, attempt), attempt)
            end_orphans(scheduler.connection, app_id.partition(":")[0], labels)
            return
        scheduler.stop(app_id)
        with contextlib.suppress(OSError):  # without this note a resume within minutes looks like a replaced node
            write_stop(rundir, attempt)

    def rescale(self, rundir: RunDir, attempt: int, nodes: int) -> None:
        scheduler, app_id, _ = self._found(rundir, attempt)
        _check_size(rundir, attempt, nodes)
        scheduler.rescale(app_id, nodes)
        with contextlib.suppress(OSError):  # the coordinator may not read the Job; without this nodes may form in several steps
            write_target(rundir, attempt, nodes)

    def preview(self, rundir: RunDir, attempt: int, nodes: int) -> str:
        scheduler, app_id, _ = self._found(rundir, attempt)
        _check_size(rundir, attempt, nodes)
        return scheduler.preview(app_id, nodes)

    def resume(self, rundir: RunDir, attempt: int) -> bool:
        """The stopped Job goes on: its objects are all still there."""
        scheduler, app_id, job = self._found(rundir, attempt)
        if job is None:
            return False
        scheduler.resume(app_id)
        return True

    def discard(self, rundir: RunDir, attempt: int, *, keep_ended: bool = False) -> None:
        if read_placement(rundir, attempt) is None:
            return
        scheduler, app_id, job = self._found(rundir, attempt)
        if job is not None and keep_ended and has_ended(job):
            return
        if job is not None:
            scheduler.delete(app_id)
            return
        labels = attempt_labels(nodes_url(rundir, attempt), attempt)
        end_orphans(scheduler.connection, app_id.partition(":")[0], labels)
        scheduler.wait_gone(app_id, labels, read_spec(rundir, attempt).elastic.drain_s)

    def log_lines(self, rundir: RunDir, attempt: int, node: int, *, follow: bool) -> Iterable[str]:
        """The log of one node's pods, from the cluster to which this attempt was submitted."""
        scheduler, app_id, _ = self._found(rundir, attempt)
        return scheduler.node_log(app_id, "node", node, follow=follow, since=None)

    def _found(self, rundir: RunDir, attempt: int) -> tuple[KubernetesScheduler, str, Json | None]:
        """What a verb acts on: the attempt's own Job, None where it is gone.

        Raises:
            ConfigError: it was never submitted, or is in another cluster.
        """
        placement = read_placement(rundir, attempt)
        if placement is None:
            raise ConfigError(
                f"attempt {attempt} of {rundir.url} was never submitted",
                follows="there is nothing to act on",
                remedy="zephon resume starts it",
            )
        scheduler = self._connected(options_from(read_spec(rundir, attempt).scheduler.options), _COMMAND_RETRY_S)
        job = find_job(scheduler.connection, placement)
        if job is None and (line := elsewhere_line(scheduler.connection, placement)):
            raise ConfigError(
                f"attempt {attempt}: {line}",
                follows="a job of the same name there may be somebody else's",
                remedy="go back to its cluster: kubectl config use-context NAME, or KUBECONFIG",
            )
        return scheduler, placement.app_id, job

    def _connected(self, options: KubernetesOptions, retry_s: float) -> KubernetesScheduler:
        """One connection per cluster: a display asks several times a second."""
        cluster = {name: getattr(options, name) for name in ("namespace", "kubeconfig", "context", "request_timeout_s")}
        key = (*cluster.values(), retry_s)
        if key not in self._schedulers:
            self._schedulers[key] = KubernetesScheduler("zephon", KubernetesOptions(**cluster), retry_s=retry_s)
        return self._schedulers[key]


def _recorded(rundir: RunDir, attempt: int, app_id: str, events: Sequence[Event]) -> AttemptState:
    """What the run directory says of the attempt; only the cluster knows its state."""
    newest = read_generation(rundir)
    current = newest if newest is not None and newest.attempt == attempt else None
    members = current.nodes if current else ()
    order, known = read_spec(rundir, attempt).stages.order, read_attempt_stages(rundir, attempt)
    stages = dict(known.states) or dict.fromkeys(order, "waiting")
    resized, counts = history(events)
    return AttemptState(
        app_id=app_id,
        state="UNKNOWN",
        target=len(members),
        members=members,
        generation=current.generation if current else 0,
        resized=resized,
        counts=counts,
        stage=known.stage,
        stages=stages if len(order) > 1 else {},
    )


def _with_summary(recorded: AttemptState, summary: Summary) -> AttemptState:
    """The state of an attempt whose Job is there."""
    running = {pod.name for pod in summary.pods if pod.phase == "Running"}
    state = dataclasses.replace(recorded, state=summary.state, target=summary.wanted, message=summary.line, notes=summary.notes)
    if not state.ended:
        return dataclasses.replace(state, members=tuple(name for name in recorded.members if _pod_of(name) in running))
    status = {"DONE": Exit.DONE, "STOPPED": Exit.LEFT}.get(summary.state, Exit.FAILED)
    if summary.state == "DONE":
        state = dataclasses.replace(state, message="", notes=())
    return dataclasses.replace(state, members=(), status=int(status))


def _gone(recorded: AttemptState, rundir: RunDir, attempt: int) -> AttemptState:
    """The state of an attempt of which nothing is left in its cluster."""
    if _finished(recorded, rundir, attempt):
        return dataclasses.replace(recorded, state="DONE", members=())
    message = "the job is no longer in the cluster; resume starts a new attempt"
    return dataclasses.replace(recorded, state="GONE", members=(), message=message)


def _finished(recorded: AttemptState, rundir: RunDir, attempt: int) -> bool:
    if any(stage not in ("done", "skipped") for stage in recorded.stages.values()):
        return False
    progress = read_progress(rundir, attempt)
    return progress is not None and (progress.step >= progress.steps or ended_at(rundir) == progress.step)


def _in_stage(state: AttemptState, rundir: RunDir, attempt: int) -> AttemptState:
    """The state with a message about the stage that is under way, which in a stopped job is stopped too."""
    if state.state in ("STOPPED", "GONE"):
        stages = {name: "stopped" if stage == "running" else stage for name, stage in state.stages.items()}
        return dataclasses.replace(state, stages=stages)
    if state.stage in ("", TRAIN) or state.state not in ("RUNNING", "STARTING", "UNKNOWN"):
        return state
    node = _pod_of(read_attempt_stages(rundir, attempt).node)
    where = f"stage {state.stage}{f' on {node}' if node else ''}"
    return dataclasses.replace(state, message=f"{where}; {state.message}")


def _pod_of(node: str) -> str:
    """The pod of a node's identity, NAME@UID."""
    return node.partition("@")[0]


def _check_size(rundir: RunDir, attempt: int, nodes: int) -> None:
    """Refuses a size that does not divide the lanes, and a change while no node trains. The scheduler refuses 0."""
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
