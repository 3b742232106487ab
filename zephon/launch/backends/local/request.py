"""What a submit to this machine sends: the value that ``plan`` prints and the supervisor reads."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path

from zephon.errors import ConfigError


def devices(wanted: str) -> list[str]:
    """Device ids: those named, separated by commas, those of this machine (``auto``), or none."""
    if wanted == "none":
        return []
    if wanted != "auto":
        return [each.strip() for each in wanted.split(",") if each.strip()]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [each for each in visible.split(",") if each]
    found = Path("/proc/driver/nvidia/gpus")  # counting through CUDA would make this process unfit to fork
    return [str(number) for number, _ in enumerate(found.iterdir())] if found.exists() else []


def gpus_of_node(gpus: Sequence[str], index: int, procs: int) -> list[str]:
    """The devices of one node: as many as it has workers, the same whatever the number of nodes.

    Raises:
        ConfigError: there are not enough.
    """
    mine = list(gpus[index * procs : (index + 1) * procs])
    if gpus and len(mine) < procs:
        raise ConfigError(
            f"{index + 1} nodes with {procs} workers each need {(index + 1) * procs} GPUs, and this machine gives {len(gpus)}",
            follows="two workers would share a device, which NCCL refuses",
            remedy="use fewer nodes, trainer.device=cpu with scheduler.options.gpus=none, or another machine",
        )
    return mine


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalRequest:
    """One attempt on this machine.

    Args:
        app_id: unique name of the attempt on this machine.
        run: URL of the run directory.
        attempt: number of this start.
        nodes: how many agents to start.
        args: arguments of every agent.
        env: environment of every agent, beside the supervisor's own.
        worker: module that each worker runs.
        cwd: where relative paths of the spec start.
        gpus: device ids; each node takes one per worker.
        lease: token of the lease that the launcher has taken for the supervisor.
    """

    app_id: str
    run: str
    attempt: int
    nodes: int
    args: list[str]
    env: dict[str, str]
    worker: str
    cwd: str
    gpus: list[str] = dataclasses.field(default_factory=list)
    lease: str = ""

    def __str__(self) -> str:
        shown = {**dataclasses.asdict(self), "lease": "..." if self.lease else ""}
        return json.dumps(shown, indent=2, ensure_ascii=False)
