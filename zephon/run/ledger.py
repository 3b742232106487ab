"""The ledger: one line per step with the SHA-256 of its global batch, written by one process, checked at every repeat.

    sequence   SHA-256 over the row's token ids as little-endian int32
    lane       SHA-256 over the digests of its sequences, in order
    step       SHA-256 over the lane digests, in lane order

A step that is trained again after a restart must have the digest it had before: anything else stops the run.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from zephon.errors import LedgerMismatch
from zephon.run.directory import RunDir
from zephon.run.metrics import DroppedSoFar
from zephon.types import Array, Json

FILE = "ledger.jsonl"
_TAIL = 1 << 16
SHORT = 12  # hexadecimal digits kept of each lane digest: enough to name the lane that differs


def sequence_digest(row: Array) -> bytes:
    """SHA-256 (32 bytes) over one sequence's token ids, any integer dtype."""
    return hashlib.sha256(np.ascontiguousarray(row, dtype="<i4").data).digest()


def step_digest(sequences: Sequence[bytes], lanes: int) -> tuple[bytes, list[bytes]]:
    """The step's digest and its lane digests, from the digests of all sequences in slot order.

    Raises ValueError when the sequences cannot be divided among the lanes.
    """
    if not sequences or len(sequences) % lanes:
        raise ValueError(f"{len(sequences)} sequence digests cannot be divided among {lanes} lanes")
    q = len(sequences) // lanes
    digests = [hashlib.sha256(b"".join(sequences[lane * q : (lane + 1) * q])).digest() for lane in range(lanes)]
    return hashlib.sha256(b"".join(digests)).digest(), digests


@dataclasses.dataclass(frozen=True)
class Entry:
    """One line of a ledger.

    Args:
        step: optimizer step, from 0.
        digest: hexadecimal SHA-256 of the global batch.
        lanes: the first digits of each lane's digest.
        rest: what else the line says, never compared: tokens by dataset, attempt, world_size, loss, dropped, ...
    """

    step: int
    digest: str
    lanes: tuple[str, ...]
    rest: Mapping[str, Any]


class Ledger:
    """Appends to one file; must have one writer at a time.

    Steps that are already there are compared; equal ones are written again (so that every attempt's steps, world sizes
    and losses are on record), different ones raise. ``steps`` are those done when the newest line was written.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        before = list(read_ledger(path)) if os.path.exists(path) else []
        self._known = {entry.step: entry for entry in before}
        self.steps = before[-1].step + 1 if before else 0
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        _repair(path)
        self._file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 - closed by close()

    def append(self, *, step: int, digest: bytes, lanes: Sequence[bytes], **rest: Any) -> None:
        """One step.

        Args:
            step: optimizer step, from 0.
            digest, lanes: what `step_digest` gave.
            rest: JSON values: tokens by dataset, attempt, world_size, loss, generation, dropped, ...

        Raises:
            LedgerMismatch: the step is there with another digest; names the first lane that differs.
        """
        entry = Entry(step, digest.hex(), tuple(lane.hex()[:SHORT] for lane in lanes), rest)
        before = self._known.get(step)
        if before is not None and before.digest != entry.digest:
            raise LedgerMismatch(
                f"step {step} had digest {before.digest[:SHORT]} and now has {entry.digest[:SHORT]}; "
                f"the first lane that differs is {_first_lane(before, entry)}",
                follows="the run would go on with other data than it was begun with",
                remedy="check that the data files are those of the first start, then resume from the last checkpoint",
            )
        self._known[step], self.steps = entry, step + 1
        line = {"step": step, "digest": entry.digest, "lanes": list(entry.lanes), **rest}
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def dropped_before(self, step: int) -> dict[str, DroppedSoFar]:
        """What the lines of the steps before say was dropped, by reason."""
        sums: dict[str, DroppedSoFar] = {}
        for entry in self._known.values():
            if entry.step < step:
                add_dropped(sums, entry.rest.get("dropped", {}))
        return sums

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def add_dropped(sums: dict[str, DroppedSoFar], dropped: Json) -> None:
    """Adds ``dropped`` of a line, ``{reason: {count, tokens, first}}``."""
    for reason, some in dropped.items():
        before = sums.get(reason, DroppedSoFar(documents=0, tokens=0))
        documents, tokens = before["documents"] + some["count"], before["tokens"] + some.get("tokens", 0)
        sums[reason] = DroppedSoFar(documents=documents, tokens=tokens)


def has_ledger(rundir: RunDir) -> bool:
    """Whether the run has made a step."""
    return rundir.exists(FILE)


def steps_recorded(rundir: RunDir) -> int:
    """How many steps were done when the newest whole line was written. Reads the end of the file alone."""
    if not has_ledger(rundir):
        return 0
    path = rundir.path(FILE)
    size, wanted = int(rundir.fs.size(path)), _TAIL
    while True:
        start = max(0, size - wanted)
        lines = rundir.fs.cat_file(path, start=start, end=size).split(b"\n")[:-1]
        lines = lines[1:] if start else lines  # the first one may have begun before
        entries = [entry for line in lines if (entry := _entry(line)) is not None]
        if entries or not start:
            return entries[-1].step + 1 if entries else 0
        wanted *= 4


def read_ledger(path: str) -> Iterator[Entry]:
    """All lines in the order written, from a path or a URL. A torn one is passed over with a warning."""
    file = RunDir(path)
    lines = file.fs.cat_file(file.root).split(b"\n")
    for number, line in enumerate(lines, 1):
        if (entry := _entry(line)) is not None:
            yield entry
        elif line and number < len(lines):  # the last line may be one that is just being written
            warnings.warn(f"line {number} of {path} is torn and was passed over", stacklevel=2)


def _entry(line: bytes) -> Entry | None:
    """None where a crash or a failing disk has torn the line."""
    try:
        loaded = json.loads(line)
        return Entry(int(loaded.pop("step")), str(loaded.pop("digest")), tuple(loaded.pop("lanes")), loaded)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _repair(path: str) -> None:
    """Cuts off a line torn by a crash, so that the next one begins on its own."""
    if not os.path.exists(path):
        return
    with open(path, "rb+") as file:
        data = file.read()
        if data and not data.endswith(b"\n"):
            file.truncate(data.rfind(b"\n") + 1)


def two_at_once(path: str) -> str:
    """Where an older membership wrote after a newer one had begun to write, as a sentence; empty where none did."""
    newest: Entry | None = None
    for entry in read_ledger(_file_of(path)):
        if newest is not None and _writer(entry) < _writer(newest):
            (attempt, generation), (later, latest) = _writer(entry), _writer(newest)
            return (
                f"two wrote at once: step {entry.step} is by attempt {attempt}, generation {generation}, "
                f"after step {newest.step} by attempt {later}, generation {latest}"
            )
        newest = entry
    return ""


def _writer(entry: Entry) -> tuple[int, int]:
    """Attempt and generation, which only grow in a ledger that one process at a time has written."""
    return int(entry.rest.get("attempt", 0)), int(entry.rest.get("generation", 0))


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Args:
        steps: how many steps both have.
        repeated: how many steps of one ledger were trained more than once.
        first: the first step that differs, or None.
        lane: its first lane that differs, or None.
        sentence: the result as a sentence.
        apart: the largest relative difference between two losses of one step, or None where no step has two. It
            is not part of the verdict, since sums in another order round differently.
    """

    steps: int
    first: int | None
    lane: int | None
    sentence: str
    apart: float | None = None
    repeated: int = 0

    @property
    def equal(self) -> bool:
        return self.first is None and self.steps > 0


def compare(path: str, other: str | None = None) -> Comparison:
    """Two ledgers step by step; or one with itself: every step that was trained more than once must agree.

    Paths are ledger files or run directories.
    """
    entries = list(read_ledger(_file_of(path)))
    theirs = list(read_ledger(_file_of(other))) if other is not None else entries
    reference: dict[int, Entry] = {}
    for entry in theirs:
        reference.setdefault(entry.step, entry)
    steps: set[int] = set()
    apart: list[float] = []
    for entry in sorted(entries if other is None else [*entries, *theirs], key=lambda e: e.step):
        known = reference.get(entry.step)
        if known is None:
            continue
        if known.digest != entry.digest:
            lane = _first_lane(known, entry)
            sentence = f"step {entry.step} differs, first in lane {lane}: {known.digest[:SHORT]} and {entry.digest[:SHORT]}"
            return Comparison(len(steps), entry.step, lane, sentence)
        steps.add(entry.step)
        if known is not entry:
            apart += _apart(known, entry)
    if other is not None:
        steps &= {entry.step for entry in entries}
    if not steps:
        return Comparison(0, None, None, "the ledgers have no step in common: nothing was compared")
    repeated, lines = 0, Counter(entry.step for entry in entries)
    sentence = f"{len(steps)} steps compared: the same global batch at every step"
    if other is None:
        repeated = sum(times > 1 for times in lines.values())
        sentence = f"{repeated} of {len(steps)} steps were trained more than once: the same global batch each time"
        if not repeated:
            sentence = f"none of {len(steps)} steps was trained more than once: there was nothing to compare"
    if missing := [step for step in range(min(lines), max(lines)) if step not in lines]:
        sentence += f"; {len(missing)} steps have no line, the first is step {missing[0]}"
    if apart:
        sentence += f"; losses {max(apart):.1e} apart at most, relative" if max(apart) else "; losses equal to the last bit"
    return Comparison(len(steps), None, None, sentence, max(apart, default=None), repeated)


def _apart(entry: Entry, other: Entry) -> list[float]:
    """The relative difference of two losses, where both are numbers."""
    a, b = entry.rest.get("loss"), other.rest.get("loss")
    if not isinstance(a, float) or not isinstance(b, float) or not (math.isfinite(a) and math.isfinite(b)):
        return []
    return [abs(a - b) / max(abs(a), abs(b), 1e-300)]


def _file_of(path: str) -> str:
    directory = RunDir(path)
    return str(directory.fs.unstrip_protocol(directory.path(FILE))) if directory.fs.isdir(directory.root) else path


def _first_lane(entry: Entry, other: Entry) -> int | None:
    return next((i for i, (a, b) in enumerate(zip(entry.lanes, other.lanes, strict=False)) if a != b), None)
