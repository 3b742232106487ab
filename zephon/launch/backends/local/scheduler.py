"""The ``local`` TorchX scheduler: this machine, one detached supervisor per attempt.

All state is on disk, so any process can list, describe, read logs and cancel: ``supervisor.json`` in the attempt's
directory (place.py), and a small index of this user's attempts below ``$XDG_STATE_HOME/zephon/local`` that maps an app id to
its run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream, StructuredOpts
from torchx.specs import AppDef, AppDryRunInfo, AppState, ReplicaStatus, Role, RoleStatus, runopts

from zephon.errors import ConfigError, ZephonError, nearest
from zephon.launch.appdef import ROLE, job_of
from zephon.launch.backends.local.request import LocalRequest, gpus_of_node
from zephon.run.attempt import index_dir, place
from zephon.run.directory import RunDir
from zephon.run.lease import LEASE_S, read_lease

_START_TIMEOUT_S = 30.0
_FULL_BYTES = 16384
_STATES = {
    "STARTING": AppState.PENDING,
    "RUNNING": AppState.RUNNING,
    "DRAINING": AppState.RUNNING,
    "DONE": AppState.SUCCEEDED,
    "STOPPED": AppState.CANCELLED,
    "FAILED": AppState.FAILED,
}


@dataclasses.dataclass
class LocalOpts(StructuredOpts):  # type: ignore[misc]
    """Options of ``scheduler=local``."""

    gpus: str = "auto"
    """device ids separated by commas, one per worker; auto finds this machine's, none uses none"""

    cwd: str = ""
    """where relative paths of the spec start; the present directory when empty"""

    lease: str = ""
    """token of the run's lease, when the caller has taken it"""


class LocalScheduler(Scheduler[LocalOpts]):  # type: ignore[misc]
    """See the module; constructing touches nothing."""

    def __init__(self, session_name: str) -> None:
        super().__init__("local", session_name)

    def _run_opts(self) -> runopts:
        return LocalOpts.as_runopts()

    def _submit_dryrun(self, app: AppDef, cfg: LocalOpts) -> AppDryRunInfo[LocalRequest, LocalOpts]:
        opts = cfg if isinstance(cfg, LocalOpts) else LocalOpts.from_cfg(cfg)
        job, role = job_of(app), app.get_role(ROLE)
        gpus = [] if job.spec.trainer.device == "cpu" else _gpus(opts.gpus)
        gpus_of_node(gpus, job.spec.nodes - 1, job.spec.elastic.procs_per_node)
        request = LocalRequest(
            app_id=_app_id(app.name, job.attempt, job.run),
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
        directory = place(RunDir(request.run), request.attempt)
        (directory / "logs").mkdir(parents=True, exist_ok=True)
        path = directory / "request.json"
        path.write_text(json.dumps(dataclasses.asdict(request), indent=2), encoding="utf-8")
        path.chmod(0o600)
        log = directory / "logs" / "supervisor.log"
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
        _remember(request)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not (directory / "supervisor.json").exists():
            if time.monotonic() > deadline or ((directory / "supervisor.lock").exists() and not running(directory)):
                raise _did_not_start(log)
            time.sleep(0.02)
        return request.app_id

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        entry = find_app(app_id)
        if entry is None:
            return None
        state = read_state(RunDir(entry["run"]), entry["attempt"])
        if state is None:
            return None
        app_state = _STATES[state["state"]]
        replicas = [
            ReplicaStatus(
                id=int(re.sub(r"\D", "", name.split("@")[0])), state=app_state, role=ROLE, hostname=socket.gethostname()
            )
            for name in state["nodes"]
        ]
        return DescribeAppResponse(
            app_id=app_id,
            state=app_state,
            num_restarts=state["counters"]["failures"],
            msg=state["message"],
            metadata={"zephon.run": entry["run"], "zephon.attempt": str(entry["attempt"])},
            roles_statuses=[RoleStatus(role=ROLE, replicas=replicas)],
            roles=[Role(name=ROLE, image="", num_replicas=state["target"])],
        )

    def list(self, cfg: Mapping[str, Any] | None = None) -> list[ListAppResponse]:
        found = []
        for entry in apps():
            state = read_state(RunDir(entry["run"]), entry["attempt"])
            if state is not None:
                found.append(ListAppResponse(app_id=entry["app_id"], state=_STATES[state["state"]], name=entry["name"]))
        return found

    def _cancel_existing(self, app_id: str) -> None:
        entry = find_app(app_id)
        assert entry is not None, "the base class has looked"
        stop(RunDir(entry["run"]), entry["attempt"])

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        entry = find_app(app_id)
        if entry is None:
            raise unknown_app(app_id)
        directory = place(RunDir(entry["run"]), entry["attempt"])
        return _lines(directory, k, re.compile(regex or ""), tail=should_tail)


def create_scheduler(session_name: str, **_: Any) -> LocalScheduler:
    """Factory for ``torchx.runner.Runner(name, {"local": create_scheduler})``."""
    return LocalScheduler(session_name)


def read_state(rundir: RunDir, attempt: int) -> dict[str, Any] | None:
    """The supervisor's last words, corrected when it has died without any; None when there never was one.

    From another machine than the supervisor's, the copy in the run directory counts, and the lease says whether it lives.
    """
    directory = place(rundir, attempt)
    own = RunDir(str(directory))
    try:
        state: dict[str, Any] = own.read_json("supervisor.json")
    except FileNotFoundError:
        return None if rundir.local else _from_elsewhere(rundir, attempt)
    if state["state"] in ("STARTING", "RUNNING", "DRAINING") and not running(directory):
        state = own.read_json("supervisor.json")  # it may have ended properly between the two looks
        if state["state"] in ("STARTING", "RUNNING", "DRAINING"):
            end_leftovers(state["app_id"])
            why = "the supervisor was killed"
            if (free := shutil.disk_usage(directory).free) < _FULL_BYTES:
                why = f"no space left on the run directory's disk ({free:,} bytes free), so the supervisor had no last word"
            state |= {"state": "FAILED", "status": 1, "message": f"{why}; nothing of it is left running"}
    return state


def _from_elsewhere(rundir: RunDir, attempt: int) -> dict[str, Any] | None:
    try:
        state: dict[str, Any] = rundir.read_json("attempts", RunDir.attempt_name(attempt), "supervisor.json")
    except FileNotFoundError:
        return None
    lease = read_lease(rundir)
    if state["state"] in ("STARTING", "RUNNING", "DRAINING") and (lease is None or not lease.binds):
        host = f" on {lease.host}" if lease else ""
        state |= {"state": "FAILED", "status": 1, "message": f"its supervisor{host} has not been heard of for {LEASE_S:.0f} s"}
    return state


def running(directory: Path) -> bool:
    """Whether a supervisor holds the lock of an attempt's directory: the system frees it with the process."""
    try:
        with open(directory / "supervisor.lock", "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True


def command(rundir: RunDir, attempt: int, message: Mapping[str, Any], *, timeout: float = 10.0) -> None:
    """Sends one command to the supervisor of a running attempt.

    Raises:
        ConfigError: it refused, or it does not run.
    """
    state = read_state(rundir, attempt)
    if state is None or state["state"] not in ("STARTING", "RUNNING", "DRAINING"):
        raise ConfigError(
            f"attempt {attempt} of {rundir.url} does not run",
            follows="there is nobody to obey",
            remedy="look at `status`; `resume` starts the run again",
        )
    directory = place(rundir, attempt)
    if not (directory / "control.json").exists():
        raise ConfigError(
            f"attempt {attempt} of {rundir.url} takes no commands here: it runs on another machine, or has just been started",
            follows="there is nobody to obey",
            remedy="give the command on the machine that `status` names in its lease, or again in a moment",
        )
    control = RunDir(str(directory)).read_json("control.json")
    with socket.create_connection(("127.0.0.1", control["port"]), timeout=timeout) as link:
        link.sendall(json.dumps({**message, "token": control["token"]}).encode() + b"\n")
        reply = json.loads(link.makefile("rb").readline() or b"{}")
    if not reply.get("ok"):
        raise ConfigError(
            reply.get("what", "the supervisor did not answer"),
            follows=reply.get("follows", "the command had no effect"),
            remedy=reply.get("remedy", "look at `status` and the supervisor's log"),
        )


def stop(rundir: RunDir, attempt: int) -> None:
    """Asks for a drain; does not wait. Without effect on an attempt that has ended."""
    with contextlib.suppress(ZephonError, ConnectionError):
        command(rundir, attempt, {"verb": "stop"})


def end_leftovers(app_id: str) -> int:
    """Kills processes of an attempt whose supervisor is dead; returns how many there were."""
    count = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get("ZEPHON_APP_ID") == app_id:
                process.send_signal(signal.SIGKILL)
                count += 1
    return count


def apps() -> list[dict[str, Any]]:
    """All attempts known on this machine, oldest first."""
    directory = index_dir()
    entries = []
    for name in sorted(os.listdir(directory)) if directory.exists() else []:
        with contextlib.suppress(FileNotFoundError):  # another process may be pruning
            if name.endswith(".json"):
                entries.append(json.loads((directory / name).read_text(encoding="utf-8")))
    return sorted(entries, key=lambda entry: (entry["time"], entry["app_id"]))


def prune() -> None:
    """Forgets attempts whose run is gone, and those that ended before their run's newest one."""
    for old in apps():
        rundir = RunDir(old["run"])
        newest = max(rundir.attempts(), default=0)
        over = old["attempt"] < newest and not running(place(rundir, old["attempt"]))
        if newest == 0 or over:
            (index_dir() / f"{old['app_id']}.json").unlink(missing_ok=True)
        if newest == 0 and not rundir.local:
            shutil.rmtree(place(rundir, old["attempt"]), ignore_errors=True)


def find_app(app_id: str) -> dict[str, Any] | None:
    return next((entry for entry in apps() if entry["app_id"] == app_id), None)


def unknown_app(app_id: str) -> ConfigError:
    return ConfigError(
        f"there is no attempt {app_id!r} on this machine",
        follows="there is nothing to show or to end",
        remedy=nearest(app_id, [entry["app_id"] for entry in apps()]) + "; `zephon list` shows all",
    )


def _app_id(name: str, attempt: int, run: str) -> str:
    """Unique on this machine: attempts of a run are numbered, and two runs of one name have different directories."""
    return f"{name}-{attempt:04d}-{hashlib.sha256(run.encode()).hexdigest()[:8]}"


def _remember(request: LocalRequest) -> None:
    directory = index_dir()
    directory.mkdir(parents=True, exist_ok=True)
    entry = {
        "app_id": request.app_id,
        "name": request.app_id.rsplit("-", 2)[0],
        "run": request.run,
        "attempt": request.attempt,
        "time": time.time(),
    }
    prune()
    scratch = directory / f"{request.app_id}.tmp"
    scratch.write_text(json.dumps(entry), encoding="utf-8")
    scratch.replace(directory / f"{request.app_id}.json")


def _gpus(wanted: str) -> list[str]:
    if wanted == "none":
        return []
    if wanted != "auto":
        return [each.strip() for each in wanted.split(",") if each.strip()]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [each for each in visible.split(",") if each]
    devices = Path("/proc/driver/nvidia/gpus")  # counting through CUDA would make this process unfit to fork
    return [str(number) for number, _ in enumerate(devices.iterdir())] if devices.exists() else []


def _did_not_start(log: Path) -> ConfigError:
    tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-12:]
    return ConfigError(
        "the local supervisor ended before it started the run: " + (tail[0].removeprefix("error: ") if tail else "no output"),
        follows="nothing is running",
        remedy=f"see {log}",
    )


def _lines(directory: Path, node: int, pattern: re.Pattern[str], *, tail: bool) -> Iterator[str]:
    """Lines of a node's agent and workers; with ``tail`` until the attempt has ended."""
    logs = directory / "logs" / f"node-{node}"
    offsets: dict[Path, int] = {}
    while True:
        alive = running(directory)
        for path in sorted(logs.glob("*.log")) if logs.exists() else []:
            with open(path, "rb") as file:
                file.seek(offsets.get(path, 0))
                text = file.read()
            end = text.rfind(b"\n") + 1 if tail and alive else len(text)
            offsets[path] = offsets.get(path, 0) + end
            for line in text[:end].decode(errors="replace").splitlines(keepends=True):
                if pattern.search(line):
                    yield line
        if not tail or not alive:
            return
        time.sleep(0.2)
