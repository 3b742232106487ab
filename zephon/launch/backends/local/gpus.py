"""The GPUs of this machine, and which of them each node gets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from zephon.errors import ConfigError


def devices(wanted: str) -> list[str]:
    """Device ids: those named, separated by commas, those of this machine (``auto``), or none."""
    if wanted == "none":
        return []
    if wanted != "auto":
        return [device.strip() for device in wanted.split(",") if device.strip()]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [device for device in visible.split(",") if device]
    driver = Path("/proc/driver/nvidia/gpus")  # asking CUDA instead would make this process unfit to fork
    return [str(number) for number, _ in enumerate(driver.iterdir())] if driver.exists() else []


def gpus_of_node(gpus: Sequence[str], index: int, procs: int) -> list[str]:
    """The devices of one node: as many as it has workers, the same whatever the number of nodes.

    Raises:
        ConfigError: there are not enough.
    """
    assigned = list(gpus[index * procs : (index + 1) * procs])
    if gpus and len(assigned) < procs:
        raise ConfigError(
            f"{index + 1} nodes with {procs} workers each need {(index + 1) * procs} GPUs, and this machine gives {len(gpus)}",
            follows="two workers would share a device, which NCCL refuses",
            remedy="use fewer nodes, trainer.device=cpu with scheduler.options.gpus=none, or another machine",
        )
    return assigned
