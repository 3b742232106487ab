"""A run directory as a supervisor and a trainer leave it."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

from tests.agent.toy import toy_spec
from zephon.launch import start as session
from zephon.run.progress import Progress, write_progress
from zephon.run.specs import write_spec
from zephon.run.state import AttemptState, write_state


class Written:
    """A run directory as a supervisor and a trainer would leave it; the supervisor's lock is held while ``alive``."""

    def __init__(self, tmp_path: Path, *, name: str = "toy") -> None:
        spec = toy_spec(tmp_path / "runs", name=name, nodes=2, steps=100, stall_s=30.0)
        self.rundir = session.rundir_of(spec)
        write_spec(self.rundir, 1, spec)
        self._lock: Any = None

    def supervisor(self, **facts: Any) -> Written:
        import fcntl

        state = AttemptState(app_id="toy-0001-x", state="RUNNING", target=2, generation=1, members=("node-0@1", "node-1@1"))
        write_state(self.rundir, 1, dataclasses.replace(state, **facts), copy=False)
        if self._lock is None:
            self._lock = open(self.rundir.path("attempts", "0001", "supervisor.lock"), "a")  # noqa: SIM115 - held by the test
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        return self

    def progress(self, step: int = 10, age_s: float = 0.0) -> Written:
        made = {"loss": 2.5, "tokens_per_s": 1234.0, "digest": "ab" * 32, "world_size": 2, "generation": 1, "pace_s": 2.0}
        write_progress(self.rundir, 1, Progress(step=step, steps=100, time=time.time() - age_s, **made))
        return self

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
