"""``metrics.jsonl``: one line per step, ``{"step", "attempt"}`` with the keys of ``StepValues``.

After a crash the steps since the checkpoint are trained again; ``series`` keeps the later line of each step, so that a curve
shows every step once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from zephon.fastjson import Json, loads
from zephon.run.directory import RunDir

FILE = "metrics.jsonl"


class PackedRows(TypedDict):
    """The step's rows, the documents or pieces of documents in them, and their padding in tokens."""

    rows: int
    segments: int
    padding: int


class DroppedSoFar(TypedDict):
    """Documents that were dropped for one reason, and their tokens where they had been tokenized."""

    documents: int
    tokens: int


class StepValues(TypedDict):
    """The metrics of one step, as a line of metrics.jsonl and the trackers have them; seconds are the host's.

    Args:
        time: when the step's line was written, in unix seconds.
        skipped: why the weights did not change, or None.
        dropped: how many documents were dropped on the way to the step.
        dropped_so_far: of the whole run up to the step, by reason, where there are any.
        shares: each dataset's part of the step's tokens.
        realized: the same over the newest thousand steps of this process, or fewer.
        targets: what it should be over these steps.
        dataset_loss, dataset_tokens: mean loss and number of each dataset's trained tokens; of no dataset without one, and
            empty where the step was skipped before its forward. Canonical reduction gives the same bits at every size.
        seconds: of the whole step, and by phase.
        memory: bytes, see train/usage.py.
        save_s: seconds that the newest save took, of its own process; a save in the background costs training less.
        mfu: the share of the device's peak, where the peak is known.
        eval_loss, eval_tokens, eval_losses: where the step ended with an evaluation; the last one of each held-out set.
    """

    time: float
    world_size: int
    generation: int
    loss: float
    digest: str
    grad_norm: float
    lr: float
    tokens: int
    total_tokens: int
    tokens_per_s: float
    skipped: str | None
    dropped: int
    shares: dict[str, float]
    dataset_loss: dict[str, float]
    dataset_tokens: dict[str, int]
    packed: PackedRows
    seconds: dict[str, float]
    memory: dict[str, int]
    dropped_so_far: NotRequired[dict[str, DroppedSoFar]]
    save_s: NotRequired[float]
    mfu: NotRequired[float]
    realized: NotRequired[dict[str, float]]
    targets: NotRequired[dict[str, float]]
    eval_loss: NotRequired[float]
    eval_tokens: NotRequired[int]
    eval_losses: NotRequired[dict[str, float]]


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
        line = json.dumps({"step": step, "attempt": self._attempt, **_spelled(values)}, ensure_ascii=False, allow_nan=False)
        self._file.write(line.encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def lines(rundir: RunDir) -> Iterator[Json]:
    """All lines in the order written; one that a crash cut short is passed over, since its step was trained again."""
    if not rundir.exists(FILE):
        return
    with rundir.fs.open(rundir.path(FILE), "rb") as file:
        for line in file:
            try:
                entry = loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict) and isinstance(entry.get("step"), int):
                yield entry


def series(rundir: RunDir) -> list[Json]:
    """One line per step, ascending: where a step was trained twice, the later line."""
    entries = {entry["step"]: entry for entry in lines(rundir)}
    return [entries[step] for step in sorted(entries)]


def _spelled(values: Mapping[str, Any]) -> Json:
    """NaN and infinities as strings, also in the values of a mapping."""
    spelled: Json = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            value = _spelled(value)
        spelled[name] = str(value) if isinstance(value, float) and not math.isfinite(value) else value
    return spelled
