"""Before a run: what is wrong with a pipeline.

`validate` runs the ops on a small sample of each dataset; with ``strict`` it runs each op twice and names the one whose
results differ. Nothing here changes a pipeline or moves its state.

    code               severity   meaning
    config             error      names, numbers or an order of ops that cannot work
    data               error      a document of the sample that cannot be read or used
    quarantined        warning    documents of the sample that would go into quarantine
    nothing-left       error      a dataset whose sample ends in no document at all
    nondeterministic   error      (strict) an op gave two results for the same input
    dropped            warning    more than half of a dataset's sample is dropped
    lane-idle          warning    a dataset with fewer chunks, or data with fewer documents, than there are lanes
    shuffle-small      warning    a shuffle buffer smaller than what one chunk holds
"""

from __future__ import annotations

import dataclasses
import hashlib
import warnings
from collections.abc import Sequence
from typing import Literal

import numpy as np

from zephon.engine.measure import few_documents
from zephon.engine.program import Program
from zephon.errors import DataError, ZephonError
from zephon.io import read
from zephon.ops.block import Block, of_documents
from zephon.ops.op import AccumulatorOp, LaneContext
from zephon.ops.pack import Pack
from zephon.ops.records import payloads
from zephon.ops.shuffle import Shuffle
from zephon.pipeline.definition import Definition
from zephon.pipeline.options import AutoValidation
from zephon.types import Columns, Ragged

SAMPLE = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Issue:
    """One finding.

    Args:
        code: see the module's text.
        severity: "error" or "warning".
        message: what, with the address where there is one, and what to do.
    """

    code: str
    severity: Literal["error", "warning"]
    message: str

    def __str__(self) -> str:
        return f"{self.severity} [{self.code}] {self.message}"


@dataclasses.dataclass(frozen=True, slots=True)
class Validation:
    """What `validate` found."""

    issues: tuple[Issue, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no error; warnings may be there."""
        return all(issue.severity != "error" for issue in self.issues)

    @property
    def codes(self) -> list[str]:
        return [issue.code for issue in self.issues]

    def __str__(self) -> str:
        return "\n".join(map(str, self.issues)) or "no issue found"


def validate(definition: Definition, *, strict: bool = False) -> Validation:
    """Checks a pipeline on its configuration and on a sample of each dataset."""
    try:
        definition.describe()
        program = definition.program()
    except DataError as error:
        return Validation((_issue("data", error),))
    except (ZephonError, ValueError) as error:
        return Validation((_issue("config", error),))
    issues, samples = _shape(definition), []
    if few := few_documents(definition.source, definition.world.lanes):
        issues.append(Issue("lane-idle", "warning", few))
    for index in range(len(program.datasets)):
        of_dataset, columns = through_stages(definition, program, index, strict=strict)
        issues += of_dataset
        samples.append(columns)
    if strict and all(issue.severity != "error" for issue in issues):
        issues += _through_accumulators(program, [columns for columns in samples if columns is not None])
    return Validation(tuple(issues))


def before_running(definition: Definition, mode: AutoValidation) -> None:
    """What ``options(auto_validation=...)`` asks for, before the first batch of a new stream.

    Args:
        mode: "strict" ends with the errors that `validate(strict=True)` finds, "warn" turns all that `validate` finds into
            Python warnings, "off" looks at nothing: a bad document is then reported when it is read, also with its address.

    Raises:
        DataError: in strict mode, naming every error.
    """
    if mode == "off":
        return
    report = validate(definition, strict=mode == "strict")
    if mode == "warn":
        for issue in report.issues:
            warnings.warn(str(issue), stacklevel=3)
        return
    errors = [str(issue) for issue in report.issues if issue.severity == "error"]
    if errors:
        raise DataError(
            "the pipeline would fail on a sample of its data:\n" + "\n".join(errors),
            follows="the run would end in the middle",
            remedy="repair what is named, quarantine such documents with on_error, or look first with auto_validation='warn'",
        )


def warn_of_few_documents(definition: Definition) -> None:
    """Warns where lanes have nothing to read, or the same; not where an incomplete step is delivered, as of held-out text."""
    lanes = definition.world.lanes
    if definition.required_batching.drop_last and lanes > 1 and (few := few_documents(definition.source, lanes)):
        warnings.warn(few, stacklevel=5)


def warn_of_unequal_ends(definition: Definition) -> None:
    """Warns where other ranks run beside this process, and nothing says who notices that the data of one has ended."""
    division = definition.division
    several = division.beside is not None and division.dp_degree > 1
    if several and definition.options.last_step == "auto" and definition.finite_bytes is not None:
        warnings.warn(
            f"the data ends, and {division.dp_degree} ranks may end at different steps: one that goes on would wait for the "
            "others for ever. Initialise torch's process group first, through which ranks agree on the last step (with "
            "drop_last); or set options(last_step='same'), with which each rank reads all "
            f"{definition.finite_bytes:,} bytes to end with the others; or stop at a step of your own, or exchange in each "
            "step whether every rank has a batch, and set options(last_step='own')",
            stacklevel=4,
        )


def _issue(code: str, error: BaseException) -> Issue:
    notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", []))
    text = str(error) if isinstance(error, ZephonError) else f"{type(error).__name__}: {error}"
    return Issue(code, "error", text + notes)


def _nondeterministic(name: str, where: str) -> Issue:
    return Issue(
        "nondeterministic",
        "error",
        f"{name} gave two different results for the same input, {where}\n"
        "  why it matters: a restarted run would train on other data than an uninterrupted one\n"
        "  fix: take randomness from the document itself (its id or text), never from a clock or a global generator",
    )


def _shape(definition: Definition) -> list[Issue]:
    """Issues that need no sample."""
    issues, lanes, chunk_bytes = [], definition.world.lanes, definition.chunk_bytes
    for index, dataset in enumerate(definition.source.datasets):
        chunks = -(-dataset.size // definition.source.chunk_bytes_of(index, lanes))
        if chunks < lanes:
            message = (
                f"dataset {dataset.name!r} has {chunks} chunks for {lanes} lanes, so that in each pass some lanes see nothing "
                f"of it; with chunk_bytes={max(1, dataset.size // (4 * lanes))} every lane would have some"
            )
            issues.append(Issue("lane-idle", "warning", message))
    if definition.source.permutes_documents:
        return issues
    length = next((op.max_length for op in definition.ops if isinstance(op, Pack)), None)
    rows = chunk_bytes // 4 // length if length else chunk_bytes // 2000  # about four bytes a token
    for op in definition.ops:
        if isinstance(op, Shuffle) and op.buffer_size < rows:
            message = (
                f"shuffle(buffer_size={op.buffer_size}) is less than the about {rows} elements of one chunk, so that "
                "neighbours stay near each other; raise it, or use shuffle_within_shard"
            )
            issues.append(Issue("shuffle-small", "warning", message))
    return issues


def through_stages(definition: Definition, program: Program, index: int, *, strict: bool) -> tuple[list[Issue], Columns | None]:
    """Runs the sample of one dataset through the stages; with ``strict`` through each of them twice.

    Returns:
        (issues, the documents that come out); None where an error ended it.
    """
    dataset, policy = definition.source.datasets[index], definition.quarantine
    try:
        columns, issues = _sample(definition, index)
    except Exception as error:  # noqa: BLE001 - whatever it is, it goes into the report
        return [_issue("data", error)], None
    sampled = len(columns)
    for number, (name, stage) in enumerate(zip(program.names, program.stages, strict=True)):
        unlimited = dataclasses.replace(policy, budget=len(columns))
        try:
            result = unlimited.attempt(stage, number, columns, index, 0)[0]
            again = unlimited.attempt(stage, number, columns, index, 0)[0] if strict else result
        except Exception as error:  # noqa: BLE001
            dataset.note_address(error)
            return [*issues, _issue("data", error)], None
        if strict and _digest_columns(result) != _digest_columns(again):
            return [*issues, _nondeterministic(name, f"on documents of dataset {dataset.name!r}")], None
        columns = result
    return [*issues, *_drop_issues(dataset.name, sampled, columns)], columns


def packing_drops(definition: Definition) -> str | None:
    """What packing drops of a sample of all datasets, in words; None where that is nothing or cannot be said."""
    pack = next((op for op in definition.ops if isinstance(op, Pack)), None)
    if pack is None:
        return None
    rule, lengths = pack.length_filter(), []
    if rule.shortest == 1 and rule.oversized == "kept":
        return None
    program = definition.program()
    for index in range(len(program.datasets)):
        columns = through_stages(definition, program, index, strict=False)[1]
        ids = None if columns is None else columns.fields.get("input_ids")
        if isinstance(ids, Ragged):
            lengths.append(ids.lengths())
    every = np.concatenate(lengths) if lengths else np.zeros(0, np.int64)
    kept = every[rule.split(every)[0]]
    if len(kept) == len(every):
        return None
    limits = f"longer than {rule.longest:,} tokens" if rule.oversized == "dropped" else ""
    limits += " or " * bool(limits and rule.shortest > 1) + (f"shorter than {rule.shortest:,}" if rule.shortest > 1 else "")
    return (
        f"{rule.name} drops documents {limits}: of a sample, {len(every) - len(kept):,} of {len(every):,} documents "
        f"with {1 - kept.sum() / max(1, every.sum()):.1%} of the tokens; wrap and best_fit_wrap split long ones instead"
    )


def _sample(definition: Definition, index: int) -> tuple[Columns, list[Issue]]:
    """The first documents of a dataset's first sample chunk."""
    dataset = definition.source.datasets[index]
    bad: list[DataError] = []
    columns = read(dataset, definition.source.sample(index, 1)[0], bad)
    issues = []
    for error in bad[:3]:
        dataset.note_address(error)
        issue = _issue("data", error)
        quarantined = dataclasses.replace(issue, code="quarantined", severity="warning")
        issues.append(quarantined if definition.quarantine.of(index) else issue)
    return columns.take(np.arange(min(SAMPLE, len(columns)))), issues


def _drop_issues(name: str, before: int, after: Columns) -> list[Issue]:
    dropped = sum(map(len, after.dropped))
    reasons = ", ".join(sorted({part.reason for part in after.dropped}))
    if before and not len(after):
        return [Issue("nothing-left", "error", f"of {before} documents of dataset {name!r} none is left: {reasons}")]
    if before and dropped * 2 > before:
        return [Issue("dropped", "warning", f"{dropped} of {before} documents of dataset {name!r} are dropped: {reasons}")]
    return []


def _through_accumulators(program: Program, samples: Sequence[Columns]) -> list[Issue]:
    """Runs the samples through the accumulators twice, op by op."""
    context = program.context(0)
    blocks = [of_documents(columns, len(program.datasets)) for columns in samples if len(columns)]
    for op in program.accumulators:
        try:
            once, twice = _through(op, blocks, context), _through(op, blocks, context)
        except Exception as error:  # noqa: BLE001
            return [_issue("data", error)]
        if [_digest_block(block) for block in once] != [_digest_block(block) for block in twice]:
            return [_nondeterministic(op.describe()["op"], "on the sample")]
        blocks = once
    return []


def _through(op: AccumulatorOp, blocks: Sequence[Block], context: LaneContext) -> list[Block]:
    state = op.open(context)
    state.start(0)
    emitted = [state.push(block) for block in blocks]
    emitted.append(state.flush(final=True))
    return [block for block in emitted if block is not None and len(block)]


def _digest_columns(columns: Columns) -> str:
    digest = hashlib.sha256(columns.row.tobytes() + columns.shard.tobytes())
    for document in columns.dicts():
        digest.update(_plain(document).encode())
    return digest.hexdigest()


def _digest_block(block: Block) -> str:
    return hashlib.sha256("".join(_plain(payload) for payload in payloads(block)).encode()).hexdigest()


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key!r}:{_plain(value[key])}" for key in sorted(value, key=str)) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_plain, value)) + "]"
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.tolist()}"
    if isinstance(value, Ragged):
        return _plain([value[i] for i in range(len(value))])
    return repr(value)


__all__ = ["Issue", "Validation", "validate"]
