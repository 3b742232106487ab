"""How hard the machine works: memory, floating-point operations, and the share of the peak where the peak is known."""

from __future__ import annotations

import resource

import torch

from zephon.spec.experiment import ModelSpec

# Dense bfloat16 peaks in operations a second, from the vendors' data sheets, by a part of the device's name.
PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "B200": 2250e12, "L4": 121e12}


def operations_per_token(*, parameters: int, spec: ModelSpec, length: int) -> float:
    """Forward and backward: 6 per parameter, and attention's 12 per layer, width and visible position (half of them causal)."""
    return 6.0 * parameters + 6.0 * spec.layers * spec.dim * length


def peak(device: torch.device) -> float | None:
    """The device's peak in operations a second; None where it is not known, as on CPUs."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((value for part, value in PEAKS.items() if part in name), None)


def memory(device: torch.device) -> dict[str, int]:
    """Bytes: the process's largest resident set, and on CUDA the largest allocation."""
    used = {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    if device.type == "cuda":
        used["device"] = torch.cuda.max_memory_allocated(device)
    return used
