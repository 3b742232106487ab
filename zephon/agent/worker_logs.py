"""What a worker's log says of its end: its last error, or where it was stuck. Each start of a worker is marked in its log."""

from __future__ import annotations

import os
import re
import time

_TAIL = 1 << 16
_LONGEST_ERROR, _LONGEST_LINE = 4000, 500

# "[rank 3] DataError: ...", followed by indented lines: how a worker prints an error of three parts.
_OURS = re.compile(r"^\[rank \d+\] (?=[A-Z]\w*: )")
_START = "--- "


def mark_start(log_file: str, *, generation: int, rank: int, world_size: int) -> None:
    """Adds the line after which a worker's output begins."""
    os.makedirs(os.path.dirname(log_file), exist_ok=True)
    now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    with open(log_file, "a", encoding="utf-8") as file:
        file.write(f"{_START}{now}Z generation {generation} rank {rank} of {world_size}\n")


def last_error(log_file: str) -> str:
    """The error with which a worker has ended since its last start; empty when its log has no line.

    One of our errors as a whole, with its address; else the last line of the first traceback, or of the log.
    """
    lines = [line for line in _since_start(log_file) if line.strip()]
    ours = next((i for i, line in enumerate(lines) if _OURS.match(line)), None)
    if ours is not None:
        end = next((i for i in range(ours + 1, len(lines)) if not lines[i].startswith("  ")), len(lines))
        return _OURS.sub("", "\n".join(lines[ours:end]), count=1)[:_LONGEST_ERROR]
    for number, line in enumerate(lines):
        if line.startswith("Traceback (most recent call last)"):
            error = next((after for after in lines[number + 1 :] if not after.startswith((" ", "\t"))), "")
            if error:
                return error.strip()[:_LONGEST_LINE]
    return lines[-1].strip()[:_LONGEST_LINE] if lines else ""


def stuck_frame(log_file: str) -> str:
    """Where the main thread stood, by the stacks in a log; empty for a rank that only waited for others in a collective."""
    lines = _since_start(log_file)
    stacks = [i for i, line in enumerate(lines) if "(most recent call first)" in line]
    if not stacks:
        return ""
    frames = []
    for line in lines[stacks[-1] + 1 :]:  # faulthandler writes the main thread last
        if not line.startswith("  File "):
            break
        frames.append(line.strip())
    waiting = any("distributed_c10d" in frame or "torch/autograd" in frame for frame in frames)
    return "" if waiting or not frames else frames[0]


def _since_start(log_file: str) -> list[str]:
    """The lines since the last start of a worker, of the last 64 KiB."""
    try:
        with open(log_file, "rb") as file:
            file.seek(max(0, os.path.getsize(log_file) - _TAIL))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    start = max((i for i, line in enumerate(lines) if line.startswith(_START)), default=-1)
    return lines[start + 1 :]
