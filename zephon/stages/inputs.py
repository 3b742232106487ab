"""What the result of a stage depends on, as plain values: a stage whose inputs are unchanged need not run again.

    doctor       the spec, this machine and its packages          train       the contract
    calibrate    the data and the tokenizer                       evaluate    the contract, the newest checkpoint, held-out data
    report       the steps on record, the newest checkpoint
    own          the contract, the function and its source, its options, the content of its input paths

A launcher sees only part of a cluster's run: it compares no input that only the nodes see.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import socket
from collections.abc import Callable, Mapping

import fsspec

from zephon.errors import ConfigError
from zephon.run.checkpoints import newest_checkpoint
from zephon.run.directory import RunDir
from zephon.run.environment import packages
from zephon.run.ledger import steps_recorded
from zephon.spec.experiment import DatasetSpec, EvalDatasetSpec, RunSpec
from zephon.stages.stage import TRAIN, Stage, elsewhere, source_of

_BLOCK = 1 << 20
Inputs = dict[str, object]


@dataclasses.dataclass(frozen=True)
class _Context:
    """The stage, and what this process sees."""

    stage: Stage
    spec: RunSpec
    rundir: RunDir
    here: bool
    files: Mapping[str, object] | None

    @property
    def contract(self) -> str:
        return fingerprint([self.spec.fields_of("pinned"), self.spec.fields_of("guarded")])


def inputs_of(
    stage: Stage, spec: RunSpec, rundir: RunDir, *, here: bool = True, files: Mapping[str, object] | None = None
) -> Inputs:
    """All that a stage's result depends on, as plain values.

    Args:
        here: the stage runs on this machine; otherwise inputs that only the nodes see are skipped.
        files: the listing of each dataset, where the caller has it already.

    Raises:
        ConfigError: an input does not exist.
    """
    return _INPUTS.get(stage.name, _own)(_Context(stage, spec, rundir, here, files))


def fingerprint(value: object) -> str:
    """SHA-256 of plain values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False, default=str).encode()).hexdigest()


def _doctor(context: _Context) -> Inputs:
    return {"spec": context.spec.sha256()} | ({"host": socket.gethostname(), "packages": packages()} if context.here else {})


def _calibrate(context: _Context) -> Inputs:
    pinned = context.spec.fields_of("pinned").items()
    fields = {name: value for name, value in pinned if name.startswith(("data.", "tokenizer."))}
    return {"fields": fields} | ({"files": context.files or _files(context.spec.data.datasets)} if context.here else {})


def _train(context: _Context) -> Inputs:
    return {"contract": context.contract}


def _evaluate(context: _Context) -> Inputs:
    held_out = context.spec.trainer.eval_data or {}
    return {
        "contract": context.contract,
        "checkpoint": newest_checkpoint(context.rundir),
        "held_out": {name: dataclasses.asdict(dataset) for name, dataset in held_out.items()},
        "tokens": context.spec.trainer.eval_tokens,
        **({"files": _files(held_out, at="trainer.eval_data")} if context.here else {}),
    }


def _report(context: _Context) -> Inputs:
    rundir = context.rundir
    return {"contract": context.contract, "steps": steps_recorded(rundir), "checkpoint": newest_checkpoint(rundir)}


def _own(context: _Context) -> Inputs:
    stage, order, here = context.stage, context.spec.stages.order, context.here
    after_training = order.index(stage.name) > order.index(TRAIN)
    return {
        "contract": context.contract,
        "call": stage.call,
        "options": dict(stage.options),
        "paths": {path: _digest(context.rundir, path, stage) for path in stage.inputs if here or not elsewhere(path)},
        **({"source": hashlib.sha256(source_of(stage).read_bytes()).hexdigest()} if here else {}),
        **({"checkpoint": newest_checkpoint(context.rundir)} if after_training else {}),
    }


_INPUTS: dict[str, Callable[[_Context], Inputs]] = {
    "doctor": _doctor,
    "calibrate": _calibrate,
    TRAIN: _train,
    "evaluate": _evaluate,
    "report": _report,
}


def _files(datasets: Mapping[str, DatasetSpec] | Mapping[str, EvalDatasetSpec], at: str = "data.datasets") -> object:
    from zephon.io.named import listings  # late: a coordinator needs no reader

    return listings(datasets, at=at)


def _digest(rundir: RunDir, path: str, stage: Stage) -> str:
    """A file by its content, a directory by the names and sizes below it."""
    fs, where = fsspec.core.url_to_fs(path) if elsewhere(path) else (rundir.fs, rundir.path(path))
    if not fs.exists(where):
        raise ConfigError(
            f"stage {stage.name}: its input {path} does not exist",
            follows="it would work on nothing",
            remedy=f"put the stage that makes it before {stage.name}, or correct stages.own.{stage.name}.inputs",
        )
    digest = hashlib.sha256()
    if fs.isdir(where):
        for name, info in sorted(fs.find(where, detail=True).items()):
            digest.update(f"{info['size']} {name.removeprefix(where)}\n".encode())
    else:
        with fs.open(where, "rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    return digest.hexdigest()
