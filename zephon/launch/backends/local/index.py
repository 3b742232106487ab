"""The attempts of this user on this machine: a small file each below ``$XDG_STATE_HOME/zephon/local``, by app id."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import time

from zephon.errors import ConfigError, nearest
from zephon.run.attempt import attempt_directory, index_dir
from zephon.run.directory import RunDir
from zephon.run.supervisor_files import LocalRequest, supervisor_lives


@dataclasses.dataclass(frozen=True, kw_only=True)
class App:
    """One attempt, and the run that it belongs to."""

    app_id: str
    name: str
    run: str
    attempt: int
    time: float

    @property
    def rundir(self) -> RunDir:
        return RunDir(self.run)


def app_id_of(name: str, attempt: int, run: str) -> str:
    """Unique on this machine: attempts of a run are numbered, and two runs of one name have different directories."""
    return f"{name}-{attempt:04d}-{hashlib.sha256(run.encode()).hexdigest()[:8]}"


def apps() -> list[App]:
    """All attempts known on this machine, oldest first."""
    directory = index_dir()
    entries = []
    for name in sorted(os.listdir(directory)) if directory.exists() else []:
        with contextlib.suppress(FileNotFoundError):  # another process may be pruning
            if name.endswith(".json"):
                entries.append(App(**json.loads((directory / name).read_text(encoding="utf-8"))))
    return sorted(entries, key=lambda app: (app.time, app.app_id))


def find_app(app_id: str) -> App | None:
    return next((app for app in apps() if app.app_id == app_id), None)


def app_of(app_id: str) -> App:
    """Raises ConfigError: there is no such attempt; the nearest is named."""
    if app := find_app(app_id):
        return app
    raise ConfigError(
        f"there is no attempt {app_id!r} on this machine",
        follows="there is nothing to show or to end",
        remedy=nearest(app_id, [app.app_id for app in apps()]) + "; `zephon list` shows all",
    )


def add(request: LocalRequest) -> None:
    """Adds the attempt that a request has started."""
    directory = index_dir()
    directory.mkdir(parents=True, exist_ok=True)
    name = request.app_id.rsplit("-", 2)[0]
    app = App(app_id=request.app_id, name=name, run=request.run, attempt=request.attempt, time=time.time())
    prune()
    scratch = directory / f"{app.app_id}.tmp"
    scratch.write_text(json.dumps(dataclasses.asdict(app)), encoding="utf-8")
    scratch.replace(directory / f"{app.app_id}.json")


def prune() -> None:
    """Forgets attempts whose run is gone, and those that ended before their run's newest one."""
    for app in apps():
        try:
            rundir = app.rundir
            newest = max(rundir.attempts(), default=0)
        except Exception:  # noqa: BLE001 - each store's client has errors of its own, and none is about the run that is started
            continue
        superseded = app.attempt < newest and not supervisor_lives(rundir, app.attempt)
        if newest == 0 or superseded:
            (index_dir() / f"{app.app_id}.json").unlink(missing_ok=True)
        if newest == 0 and not rundir.local:
            shutil.rmtree(attempt_directory(rundir, app.attempt), ignore_errors=True)
