"""The ``local`` TorchX scheduler: this machine, one detached supervisor per attempt.

All state is on disk, so any process can list, describe, read logs and cancel: the supervisor's files in the attempt's
directory (supervision.py), and an index of this user's attempts that maps an app id to its run (index.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, StructuredOpts
from torchx.specs import AppDef, AppDryRunInfo, ReplicaStatus, Role, RoleStatus, runopts

from zephon.errors import ConfigError, ZephonError
from zephon.launch.appdef import ROLE, job_of
from zephon.launch.backends.local.commands import Stop
from zephon.launch.backends.local.gpus import devices, gpus_of_node
from zephon.launch.backends.local.index import add, app_id_of, app_of, apps, find_app
from zephon.launch.backends.local.supervision import read_state, send_command
from zephon.launch.backends.submission import APP_STATES, NodeLogs
from zephon.run.attempt import logs_of
from zephon.run.directory import RunDir
from zephon.run.supervisor_files import LocalRequest, supervisor_began, supervisor_lives, write_request

_START_TIMEOUT_S = 30.0


@dataclasses.dataclass
class LocalOpts(StructuredOpts):  # type: ignore[misc]
    """Options of ``scheduler=local``."""

    gpus: str = "auto"
    """device ids separated by commas, one per worker; auto finds this machine's, none uses none"""

    cwd: str = ""
    """where relative paths of the spec start; the present directory when empty"""

    lease: str = ""
    """token of the run's lease, when the caller has taken it"""


class LocalScheduler(NodeLogs[LocalOpts]):
    """See the module; constructing touches nothing."""

    def __init__(self, session_name: str) -> None:
        super().__init__("local", session_name)

    def _run_opts(self) -> runopts:
        return LocalOpts.as_runopts()

    def _submit_dryrun(self, app: AppDef, cfg: LocalOpts) -> AppDryRunInfo[LocalRequest, LocalOpts]:
        opts = cfg if isinstance(cfg, LocalOpts) else LocalOpts.from_cfg(cfg)
        job, role = job_of(app), app.get_role(ROLE)
        gpus = [] if job.spec.trainer.device == "cpu" else devices(opts.gpus)
        gpus_of_node(gpus, job.spec.nodes - 1, job.spec.elastic.procs_per_node)
        request = LocalRequest(
            app_id=app_id_of(app.name, job.attempt, job.run),
            run=job.run,
            attempt=job.attempt,
            nodes=job.spec.nodes,
            args=job.agent(),
            env={key: str(value) for key, value in role.env.items() if key.startswith(("ZEPHON_", "TORCH_", "PYTHON"))},
            worker=job.worker,
            cwd=opts.cwd or os.getcwd(),
            gpus=gpus,
            lease=opts.lease,
        )
        return AppDryRunInfo(request, str)

    def schedule(self, dryrun_info: AppDryRunInfo[LocalRequest, LocalOpts]) -> str:
        """Starts the supervisor and returns when it has written its first state.

        Raises:
            ConfigError: the supervisor refused, for example because another process holds the run.
        """
        request: LocalRequest = dryrun_info.request
        rundir = RunDir(request.run)
        logs = logs_of(rundir, request.attempt)
        logs.mkdir(parents=True, exist_ok=True)
        path, log = write_request(request), logs / "supervisor.log"
        with open(log, "ab") as output:
            subprocess.run(
                [sys.executable, "-m", "zephon.launch.backends.local.supervisor", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=request.cwd,
                # NumPy's thread pool would start with the first import, before the supervisor forks.
                env={"OPENBLAS_NUM_THREADS": "1", **os.environ, "ZEPHON_APP_ID": request.app_id, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
                check=True,
                timeout=_START_TIMEOUT_S,
            )
        add(request)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while read_state(rundir, request.attempt) is None:
            ended = supervisor_began(rundir, request.attempt) and not supervisor_lives(rundir, request.attempt)
            if ended or time.monotonic() > deadline:
                raise _did_not_start(log)
            time.sleep(0.02)
        return request.app_id

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        app = find_app(app_id)
        state = read_state(app.rundir, app.attempt) if app else None
        if app is None or state is None:
            return None
        app_state = APP_STATES[state.state]
        replicas = [
            ReplicaStatus(
                id=int(re.sub(r"\D", "", name.split("@")[0])), state=app_state, role=ROLE, hostname=socket.gethostname()
            )
            for name in state.agents
        ]
        return DescribeAppResponse(
            app_id=app_id,
            state=app_state,
            num_restarts=state.counts.failures,
            msg=state.message,
            metadata={"zephon.run": app.run, "zephon.attempt": str(app.attempt)},
            roles_statuses=[RoleStatus(role=ROLE, replicas=replicas)],
            roles=[Role(name=ROLE, image="", num_replicas=state.target)],
        )

    def list(self, cfg: Mapping[str, Any] | None = None) -> list[ListAppResponse]:
        known = [(app, state) for app in apps() if (state := read_state(app.rundir, app.attempt))]
        return [ListAppResponse(app_id=app.app_id, state=APP_STATES[state.state], name=app.name) for app, state in known]

    def _cancel_existing(self, app_id: str) -> None:
        """Without effect on an attempt that has ended."""
        app = app_of(app_id)
        with contextlib.suppress(ZephonError, ConnectionError):
            send_command(app.rundir, app.attempt, Stop())

    def node_log(self, app_id: str, role: str, node: int, *, follow: bool, since: datetime | None) -> Iterable[str]:
        app = app_of(app_id)
        if since is not None:
            raise ConfigError(
                f"since={since}: the lines of a node's log on this machine have no time of their own",
                follows="lines from before would be shown too",
                remedy="leave it out",
            )
        return node_lines(app.rundir, app.attempt, node, follow=follow)


def create_scheduler(session_name: str, **_: Any) -> LocalScheduler:
    """Factory for ``torchx.runner.Runner(name, {"local": create_scheduler})``."""
    return LocalScheduler(session_name)


def _did_not_start(log: Path) -> ConfigError:
    tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-12:]
    return ConfigError(
        "the local supervisor ended before it started the run: " + (tail[0].removeprefix("error: ") if tail else "no output"),
        follows="nothing is running",
        remedy=f"see {log}",
    )


def node_lines(rundir: RunDir, attempt: int, node: int, *, follow: bool) -> Iterator[str]:
    """Lines of a node's agent and workers; with ``follow`` until the attempt has ended."""
    logs = logs_of(rundir, attempt) / f"node-{node}"
    offsets = dict[Path, int]()
    while True:
        alive = supervisor_lives(rundir, attempt)
        for path in sorted(logs.glob("*.log")) if logs.exists() else []:
            with open(path, "rb") as file:
                file.seek(offsets.get(path, 0))
                text = file.read()
            end = text.rfind(b"\n") + 1 if follow and alive else len(text)
            offsets[path] = offsets.get(path, 0) + end
            yield from text[:end].decode(errors="replace").splitlines(keepends=True)
        if not follow or not alive:
            return
        time.sleep(0.2)
