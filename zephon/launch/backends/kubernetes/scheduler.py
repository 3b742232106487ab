"""Scheduler ``kubernetes``: TorchX's verbs, and rescale, stop and resume, on a plain Indexed Job.

    submit_dryrun ─► manifest.Request (no cluster needed) ─► schedule: server-side dry run, then the Job and what it owns

``stop`` suspends: the pods drain and the objects stay; ``resume`` starts them again; ``delete`` removes everything the Job
owns and waits until it is gone. An app id is ``namespace:name``.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, TypeVar

from torchx.schedulers.api import DescribeAppResponse, ListAppResponse
from torchx.specs import AppDef, AppDryRunInfo, AppState, ReplicaStatus, Role, RoleStatus, runopts

from zephon.fastjson import Json
from zephon.launch.appdef import ROLE
from zephon.launch.backends.kubernetes import names
from zephon.launch.backends.kubernetes.client import Cluster
from zephon.launch.backends.kubernetes.errors import ClusterError, NoAnswer, NotFound
from zephon.launch.backends.kubernetes.history import warnings_of
from zephon.launch.backends.kubernetes.living import labels_of, left
from zephon.launch.backends.kubernetes.logs import node_log
from zephon.launch.backends.kubernetes.manifest import Request, build
from zephon.launch.backends.kubernetes.options import KubernetesOptions, options_from
from zephon.launch.backends.kubernetes.queue import check_queue, is_queued, queue_status, set_active
from zephon.launch.backends.kubernetes.rescale import Rescaled, check_not_ended, check_rescale, effect, rescale_job
from zephon.launch.backends.kubernetes.status import Phase, Summary, conditions_of, summarize
from zephon.launch.backends.kubernetes.submit import create_all
from zephon.launch.backends.submission import APP_STATES, NodeLogs

_PHASES: dict[Phase, AppState] = {
    "Pending": AppState.PENDING,
    "Running": AppState.RUNNING,
    "Succeeded": AppState.SUCCEEDED,
    "Failed": AppState.FAILED,
}
DELETE_MARGIN_S = 60.0
T = TypeVar("T")


class _Options(runopts):  # type: ignore[misc]
    """TorchX's option table, resolved by our typed options so that an error names field, value and remedy."""

    def resolve(self, cfg: Json, *, ignore_unknown: bool = False) -> Json:
        return options_from(cfg).to_dict()


class KubernetesScheduler(NodeLogs[Json]):
    """One cluster; nothing is opened before the first verb that needs it.

    Args:
        session_name: TorchX's session.
        options: which cluster and namespace the verbs other than submit use; a submit brings its own.
        retry_s: how long to wait for an API server that does not answer.
    """

    def __init__(self, session_name: str, options: KubernetesOptions | None = None, *, retry_s: float = 60.0) -> None:
        super().__init__("kubernetes", session_name)
        self.retry_s = retry_s
        self.options = options or KubernetesOptions()
        self._clusters: dict[tuple[str | None, str | None], Cluster] = {}

    def close(self) -> None:
        for cluster in self._clusters.values():
            cluster.close()
        self._clusters.clear()

    @property
    def connection(self) -> Cluster:
        """The cluster of the verbs other than submit."""
        return self._cluster(self.options)

    def _cluster(self, options: KubernetesOptions) -> Cluster:
        key = (options.kubeconfig, options.context)
        if key not in self._clusters:
            self._clusters[key] = Cluster(
                kubeconfig=key[0], context=key[1], timeout_s=options.request_timeout_s, retry_s=self.retry_s
            )
        return self._clusters[key]

    def _run_opts(self) -> runopts:
        opts = _Options()
        for name, value in KubernetesOptions().to_dict().items():
            opts.add(name, type_=type(value) if value is not None else str, default=value, help=f"see KubernetesOptions.{name}")
        return opts

    # submit

    def _submit_dryrun(self, app: AppDef, cfg: Json) -> AppDryRunInfo[Request]:
        request = build(app, options_from(cfg), submission=uuid.uuid4().hex)
        return AppDryRunInfo(request, Request.to_yaml)

    def schedule(self, dryrun_info: AppDryRunInfo[Request]) -> str:
        """Creates the objects of a dry run; repeating it after a lost answer finds what is already there.

        Raises:
            ClusterError: refused or unreachable; then nothing stays in the cluster.
        """
        request: Request = dryrun_info.request
        options = options_from(dryrun_info.cfg or {})
        self.options = options
        cluster = self._cluster(options)
        check_queue(cluster, options)
        create_all(cluster, request.documents, dry_run=options.server_dry_run)
        return f"{request.namespace}:{request.name}"

    # state

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        summary = self.summary(app_id)
        if summary is None:
            return None
        replicas = [
            ReplicaStatus(
                id=pod.index,
                state=_PHASES[pod.phase],
                role=ROLE,
                hostname=pod.name,
                structured_error_msg=pod.trouble or "<NONE>",
            )
            for pod in summary.pods
        ]
        return DescribeAppResponse(
            app_id=app_id,
            state=APP_STATES[summary.state],
            num_restarts=summary.restarts,
            msg=summary.line,
            roles_statuses=[RoleStatus(role=ROLE, replicas=replicas)],
            roles=[Role(name=ROLE, image="", num_replicas=summary.wanted)],
        )

    def summary(self, app_id: str) -> Summary | None:
        """State, one line and nodes of a job; None when there is none of that name."""
        namespace, name = self._parse(app_id)
        try:
            job = self.connection.get("Job", namespace, name)
        except NotFound:
            return None
        return self.summary_of(job)

    def summary_of(self, job: Json) -> Summary:
        """The same for a job that has just been read."""
        cluster, unasked = self.connection, list[str]()

        def ask(what: str, question: Callable[[], T]) -> T | None:
            try:
                return question()
            except NoAnswer:
                raise
            except ClusterError as error:  # the rest is still worth showing
                unasked.append(f"{what} cannot be read: {error.what}")
                return None

        pods = ask("its pods", lambda: cluster.find("Pod", job["metadata"]["namespace"], labels=labels_of(job)))
        queued = ask("its queue", lambda: queue_status(cluster, job))
        warnings = ask("its events", lambda: warnings_of(cluster, job, pods or ()))
        return summarize(job, pods, queued=queued, warnings=warnings or (), unasked=unasked)

    def list(self, cfg: Json | None = None) -> list[ListAppResponse]:
        options = options_from(cfg) if cfg else self.options
        jobs = self._cluster(options).find("Job", options.namespace, labels=f"{names.MANAGED_BY}=zephon")
        return [
            ListAppResponse(
                app_id=f"{options.namespace}:{job['metadata']['name']}",
                state=APP_STATES[summarize(job, []).state] if _settled(job) else _coarse(job),
                name=job["metadata"]["labels"].get(names.RUN, ""),
            )
            for job in jobs
        ]

    def node_log(self, app_id: str, role: str, node: int, *, follow: bool, since: datetime | None) -> Iterable[str]:
        """The log of a node, over all pods that have had that index; ``role`` may be ``coordinator``."""
        namespace, name = self._parse(app_id)
        return node_log(self._cluster(self.options), namespace, name, role=role, index=node, follow=follow, since=since)

    # change

    def rescale(self, app_id: str, nodes: int) -> Rescaled:
        """Sets the number of nodes by one patch; see rescale.py for what is refused."""
        namespace, name = self._parse(app_id)
        return rescale_job(self._cluster(self.options), namespace, name, nodes)

    def preview(self, app_id: str, nodes: int) -> str:
        """What a rescale would do to the pods, in a sentence; refuses what ``rescale`` would refuse."""
        namespace, name = self._parse(app_id)
        job = self._cluster(self.options).get("Job", namespace, name)
        check_rescale(job, nodes)
        return effect(job, nodes)

    def stop(self, app_id: str) -> None:
        """Suspends: every pod gets SIGTERM and its grace period, the objects stay. A queued job is stopped through Kueue."""
        self._suspend(app_id, suspend=True)

    def resume(self, app_id: str) -> None:
        """Ends a suspension: as many pods as before, from the last checkpoint."""
        self._suspend(app_id, suspend=False)

    def _suspend(self, app_id: str, *, suspend: bool) -> None:
        namespace, name = self._parse(app_id)
        cluster = self._cluster(self.options)
        job = cluster.get("Job", namespace, name)
        check_not_ended(job, "stop" if suspend else "resume")
        if is_queued(job):
            set_active(cluster, job, active=not suspend)
        else:
            cluster.patch("Job", namespace, name, {"spec": {"suspend": suspend}})

    def _cancel_existing(self, app_id: str) -> None:
        self.stop(app_id)

    def _delete_existing(self, app_id: str) -> None:
        """Deletes the Job and what it owns, and waits until no pod is left.

        Raises:
            ClusterError: something is still there after the grace period and a minute.
        """
        namespace, name = self._parse(app_id)
        cluster = self._cluster(self.options)
        job = cluster.get("Job", namespace, name)
        cluster.delete("Job", namespace, name)
        self.wait_gone(app_id, labels_of(job), float(job["spec"]["template"]["spec"].get("terminationGracePeriodSeconds", 30)))

    def wait_gone(self, app_id: str, labels: str, grace_s: float) -> None:
        """Waits until nothing with these labels is left."""
        namespace, _ = self._parse(app_id)
        deadline = time.monotonic() + grace_s + DELETE_MARGIN_S
        while there := left(self._cluster(self.options), namespace, labels):
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"delete {app_id}: still there {grace_s + DELETE_MARGIN_S:.0f} s later: {', '.join(there)}",
                    follows="they hold resources, and the name cannot be used again",
                    remedy="a pod on a lost machine needs the machine back, or its out-of-service taint (zephon status)",
                )
            time.sleep(0.3)

    def _parse(self, app_id: str) -> tuple[str, str]:
        namespace, _, name = app_id.rpartition(":")
        return namespace or self.options.namespace, name


def create_scheduler(session_name: str, **kwargs: Any) -> KubernetesScheduler:
    """TorchX's factory; ``options`` may be a KubernetesOptions. TorchX passes other arguments to every factory."""
    options = kwargs.get("options")
    return KubernetesScheduler(session_name, options if isinstance(options, KubernetesOptions) else None)


def _settled(job: Json) -> bool:
    return bool(job["spec"].get("suspend")) or any(condition["status"] == "True" for condition in conditions_of(job))


def _coarse(job: Json) -> AppState:
    return AppState.RUNNING if (job.get("status") or {}).get("ready") else AppState.PENDING
