"""What a run's ledger must say whatever happened to the run. Nothing of the product reads it here, except the loader.

A ledger is good when its writers follow each other, each begins where some line before it ended or earlier, no step is missing,
and each step has the digest that the design defines and that one undisturbed pass of the loader gives.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import Any

import numpy as np

from zephon.ops.tokenizers import load_tokenizer
from zephon.pipeline.experiment import pipeline
from zephon.run.calibration import read_calibration
from zephon.run.directory import RunDir
from zephon.spec.experiment import RunSpec


def lines_of(rundir: RunDir) -> list[dict[str, Any]]:
    """The ledger's lines as they lie there. A torn one is an error here: the next writer has to mend it."""
    text: bytes = rundir.fs.cat_file(rundir.path("ledger.jsonl"))
    return [json.loads(line) for line in text.split(b"\n") if line]


def faults(lines: list[dict[str, Any]], digests: list[str]) -> list[str]:
    """What is wrong with a ledger whose step i must have digest i; empty where nothing is."""
    found, seen, writer, expected = [], set[int](), (0, 0), 0
    for number, line in enumerate(lines, 1):
        step, by = line["step"], (line["attempt"], line["generation"])
        if by < writer:
            found.append(f"line {number}: {by} wrote after {writer}")
        elif by == writer and step != expected:
            found.append(f"line {number}: step {step} after step {expected - 1}")
        elif by > writer and step > max(seen, default=-1) + 1:
            found.append(f"line {number}: {by} begins at step {step}, and steps before it were never trained")
        if step >= len(digests) or line["digest"] != digests[step]:
            found.append(f"line {number}: step {step} has another digest than the undisturbed run")
        seen.add(step)
        writer, expected = max(writer, by), step + 1
    return found + [f"step {step} is missing" for step in range(max(seen, default=0)) if step not in seen]


def undisturbed(spec: RunSpec, rundir: RunDir, steps: int) -> list[str]:
    """The digest of each step of a run at one rank, as the design defines it."""
    feed = pipeline(spec, load_tokenizer(spec.tokenizer.id), dp_rank=0, dp_size=1)
    feed.calibrate(read_calibration(rundir))
    found = []
    for batches in itertools.islice(feed.steps(), steps):
        rows = [row for batch in batches for row in np.asarray(batch.fields["input_ids"])]
        sequences = [hashlib.sha256(row.astype("<i4").tobytes()).digest() for row in rows]
        share = len(sequences) // spec.lanes.count
        lanes = [sequences[i : i + share] for i in range(0, len(sequences), share)]
        digests = [hashlib.sha256(b"".join(lane)).digest() for lane in lanes]
        found.append(hashlib.sha256(b"".join(digests)).hexdigest())
    feed.close()
    return found


def line_of(ledger: bytes, steps: int) -> int:
    """How many lines the ledger had when ``steps`` steps were done for the last time."""
    numbers = [json.loads(line)["step"] for line in ledger.split(b"\n")[:-1]]
    return max((i + 1 for i, step in enumerate(numbers) if step < steps), default=0)
