"""``metrics.jsonl``: one line per step, ``{"step", "attempt", "loss", ...}``, with the keys of train/records.py.

After a crash the steps since the checkpoint are trained again; ``series`` keeps the later line of each step, so that a curve
shows every step once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zephon.fastjson import Json
from zephon.run.directory import RunDir

FILE = "metrics.jsonl"


class MetricsFile:
    """Appends to a local file, step by step; NaN and infinities are written as strings."""

    def __init__(self, path: Path, attempt: int) -> None:
        self._attempt = attempt
        torn = path.exists() and not path.read_bytes().endswith(b"\n")
        self._file = path.open("ab")
        if torn:  # a crash cut the last line short; the next one begins on its own
            self._file.write(b"\n")

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """One step, counted from 0."""
        spelled = {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
        line = json.dumps({"step": step, "attempt": self._attempt, **spelled}, ensure_ascii=False, allow_nan=False)
        self._file.write(line.encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def series(rundir: RunDir) -> list[Json]:
    """One line per step, ascending: where a step was trained twice, the later line."""
    entries: dict[int, Json] = {}
    if not rundir.exists(FILE):
        return []
    for line in rundir.fs.cat_file(rundir.path(FILE)).splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue  # a line cut short by a crash; its step was trained again
        entries[entry["step"]] = entry
    return [entries[step] for step in sorted(entries)]
