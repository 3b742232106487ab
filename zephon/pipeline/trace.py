"""What a step of a run held: recomputed from its directory and its data, without training and on any machine.

    ledger      cursors of the lanes before the step, its digest
    data        the chunks of one flush interval of each lane, read again
    Trace       the documents of every row, and whether the digest is the recorded one

A step that was not trained yet is computed from the last recorded cursors on: that takes as long as the loader needs for the
steps in between.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from zephon.batch import SampleBatch
from zephon.cursor import Cursor, RankState
from zephon.errors import ConfigError
from zephon.io.named import listings
from zephon.ops.tokenizers import load_tokenizer
from zephon.pipeline.experiment import pipeline
from zephon.pipeline.pipeline import Pipeline
from zephon.run.calibration import read_calibration
from zephon.run.contract_file import has_contract, read_contract
from zephon.run.decisions import read_decisions
from zephon.run.directory import RunDir
from zephon.run.lane_cursors import cursors_before
from zephon.run.ledger import FILE, Entry, has_ledger, read_ledger, sequence_digest, step_digest
from zephon.run.specs import newest_spec
from zephon.spec.experiment import RunSpec
from zephon.types import DocumentSpan, Json


@dataclasses.dataclass(frozen=True, kw_only=True)
class TracedRow:
    """One sequence of a global batch.

    Args:
        slot: its place in the global batch.
        lane, row: which lane delivered it, and its number among the lane's sequences of this step.
        documents: which tokens of it are of which document.
        text: what it says.
    """

    slot: int
    lane: int
    row: int
    documents: tuple[DocumentSpan, ...]
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trace:
    """A global batch.

    Args:
        run: URL of its directory.
        step: which one.
        digest: SHA-256 of the global batch, as recomputed; hexadecimal.
        recorded: the same as the ledger has it; None for a step that was not trained yet.
        rows: in slot order.
        replayed: steps that had to be computed before this one.
    """

    run: str
    step: int
    digest: str
    recorded: str | None
    rows: tuple[TracedRow, ...]
    replayed: int = 0

    @property
    def agrees(self) -> bool | None:
        """Whether the digest is the recorded one; None where there is none."""
        return None if self.recorded is None else self.digest == self.recorded

    def to_dict(self) -> Json:
        """As plain values, without texts."""
        rows = [
            {
                "slot": row.slot,
                "lane": row.lane,
                "row": row.row,
                "documents": [
                    {"address": list(span.address), "start": span.start, "stop": span.stop, "offset": span.offset}
                    for span in row.documents
                ],
            }
            for row in self.rows
        ]
        named = {"run": self.run, "step": self.step, "digest": self.digest, "recorded": self.recorded, "agrees": self.agrees}
        return {**named, "rows": rows}


def trace(run: str, *, step: int) -> Trace:
    """The documents of a step's global batch, with their addresses.

    Args:
        run: the run's directory, a path or any fsspec URL.
        step: from 0; one that was not trained yet is foretold.

    Raises:
        ConfigError: no run, files that are not those of the run, data that ends before the step, or a step below 0.
    """
    rundir = RunDir(run)
    if step < 0 or not rundir.holds_run():
        what = f"step={step} is below 0" if step < 0 else f"{run} holds no run"
        raise ConfigError(what, follows="there is nothing to trace", remedy="check the run's name and the step")
    spec = newest_spec(rundir)
    entries = entries_of(rundir)
    traced = pipeline_of(rundir, spec)
    start, cursors = nearest_cursors(entries, step, spec)
    traced.follow(RankState(start, 0, cursors))
    batches = batches_of(traced, start, step)
    recorded = next((entry.digest for entry in reversed(entries) if entry.step == step), None)
    per_lane = traced.world.per_lane
    rows, digests = [], []
    for batch in batches:
        ids = np.asarray(batch.fields["input_ids"])
        digests += [sequence_digest(row) for row in ids[: batch.real_rows]]
        for slot, text, spans in zip(batch.slots.tolist(), batch.text(), batch.documents(), strict=True):
            lane, row = divmod(slot, per_lane)
            rows.append(TracedRow(slot=slot, lane=lane, row=row, documents=tuple(spans), text=text))
    digest = step_digest(digests, spec.lanes.count)[0].hex()
    return Trace(run=rundir.url, step=step, digest=digest, recorded=recorded, rows=tuple(rows), replayed=step - start)


def entries_of(rundir: RunDir) -> list[Entry]:
    """The lines of the run's ledger, in the order written."""
    if not has_ledger(rundir):
        return []
    return list(read_ledger(rundir.path(FILE) if rundir.local else f"{rundir.url.rstrip('/')}/{FILE}"))


def pipeline_of(rundir: RunDir, spec: RunSpec, rank: int = 0, size: int = 1) -> Pipeline:
    """The run's pipeline in this thread, calibrated as the run was, for one ``rank`` of ``size``.

    Raises:
        ConfigError: files that are not those of the run.
    """
    _refuse_other_files(rundir, spec)
    alone = dataclasses.replace(spec.loader, runner="inline", workers=0, prefetch_batches=0, isolated=False)
    spec = dataclasses.replace(spec, loader=alone)
    tokenizer, decisions = load_tokenizer(spec.tokenizer.id, backend=spec.tokenizer.backend), read_decisions(rundir) or ()
    built = pipeline(spec, tokenizer, dp_rank=rank, dp_size=size, decisions=decisions)
    counts = read_calibration(rundir)
    if counts is not None:
        built.calibrate(counts)
    return built


def _refuse_other_files(rundir: RunDir, spec: RunSpec) -> None:
    files = read_contract(rundir).files if has_contract(rundir) else None
    if files is None:
        return
    for name, listed in listings(spec.data.datasets).items():
        if name in files and files[name]["sha256"] != listed["sha256"]:
            raise ConfigError(
                f"data.datasets.{name}: {listed['files']} files of {listed['size']:,} units are at "
                f"{spec.data.datasets[name].path}, and the run had {files[name]['files']} of {files[name]['size']:,}",
                follows="other documents would be named than those that were trained on",
                remedy="restore the files of the run, or trace it where they are",
            )


def nearest_cursors(entries: Sequence[Entry], step: int, spec: RunSpec) -> tuple[int, dict[int, Cursor]]:
    """The last step up to this one whose cursors are known, and these cursors."""
    lanes, per_lane = spec.lanes.count, spec.global_batch_size // spec.lanes.count
    last = max((entry.step for entry in entries), default=-1) + 1
    for start in dict.fromkeys([min(step, last), 0]):
        cursors = cursors_before(entries, start, lanes, per_lane)
        if cursors is not None:
            return start, cursors
    raise AssertionError("unreachable: the cursors before step 0 are known")


def batches_of(traced: Pipeline, start: int, step: int) -> list[SampleBatch]:
    """The microbatches of a step, after those of the steps before it."""
    try:
        for number, microbatches in enumerate(traced.steps(), start):
            batches = list(microbatches)
            if number == step:
                return batches
    finally:
        traced.close()
    raise ConfigError(
        f"the data ends before step {step}",
        follows="no document is in it",
        remedy="ask for an earlier step; `zephon status` shows how far the run is",
    )


def document_named(text: str) -> tuple[str, str, int]:
    """Reads DATASET:SHARD:ROW.

    Raises:
        ConfigError: it is not of that form.
    """
    dataset, first, rest = text.partition(":")
    shard, second, row = rest.rpartition(":")
    if not (first and second and dataset and shard and row.isdigit()):
        raise ConfigError(
            f"--document {text} is not of the form DATASET:SHARD:ROW",
            follows="nobody could say which document is meant",
            remedy="as batch.documents() and the ledger name it, for example web:part-00001.jsonl:81920",
        )
    return dataset, shard, int(row)
