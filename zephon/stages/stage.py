"""A run as a list of stages: which there are, what each depends on, and which is done already.

doctor -> calibrate -> train -> evaluate          each with stages/NAME.json: inputs, status, outputs, result

A stage is a function ``(run: RunDir, spec: RunSpec, **options) -> small dict or None``, named "module:function"; the built-in
ones are no exception, but for ``train``, which is the attempt's nodes. A stage is current when it is done, the hash of its
inputs is what it was, and its outputs are there. Nothing here starts anything.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import os
import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fsspec

from zephon.errors import ConfigError, nearest
from zephon.io.named import listings
from zephon.run import calibration, evaluation
from zephon.run.checkpoints import newest_checkpoint
from zephon.run.directory import RunDir
from zephon.run.environment import packages
from zephon.spec.experiment import RunSpec

TRAIN = "train"
_BLOCK = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage; ``inputs`` and ``outputs`` are paths, see docs/launching.md."""

    name: str
    call: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


BUILT_IN = {
    "doctor": Stage(name="doctor", call="zephon.launch.cli.doctor:stage"),
    "calibrate": Stage(name="calibrate", call="zephon.train.stages:calibrate", outputs=(calibration.FILE,)),
    TRAIN: Stage(name=TRAIN, call=""),
    "evaluate": Stage(name="evaluate", call="zephon.train.stages:evaluate", outputs=(evaluation.FILE,)),
}


def stages_of(spec: RunSpec) -> list[Stage]:
    """The run's stages in order.

    Raises:
        ConfigError: an unknown, repeated or ill-named stage, or none that trains.
    """
    order, own = spec.stages.order, spec.stages.own
    known = {
        **BUILT_IN,
        **{
            name: Stage(name=name, call=one.call, inputs=one.inputs, outputs=one.outputs, options=one.options)
            for name, one in own.items()
        },
    }
    for name in own:
        if name in BUILT_IN or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
            raise ConfigError(
                f"stages.own.{name}: " + ("the name of a built-in stage" if name in BUILT_IN else "no name for a stage"),
                follows="its record could not be told from another's",
                remedy="use another name of letters, digits, hyphens and underscores",
            )
    for index, name in enumerate(order):
        if name not in known or name in order[:index]:
            raise ConfigError(
                f"stages.order: {name!r} is " + ("given twice" if name in known else "not a stage"),
                follows="the run could not be carried out",
                remedy="leave one of them out" if name in known else f"{nearest(name, known)}; stages.own defines further ones",
            )
    if TRAIN not in order:
        raise ConfigError(
            f"stages.order=[{','.join(order)}] holds no {TRAIN!r}",
            follows="nothing would be trained",
            remedy=f"put {TRAIN} where it belongs; a stage that is done is skipped anyway",
        )
    return [known[name] for name in order]


def check(spec: RunSpec) -> None:
    """What must hold before a start.

    Raises:
        ConfigError: see ``stages_of``; also a function that is not there, held-out data that is missing, or a scheduler
            whose stages nobody could see. What only a cluster's nodes can see is theirs to refuse.
    """
    stages = stages_of(spec)
    if spec.scheduler.name == "volcano" and len(stages) > 1:
        raise ConfigError(
            f"stages.order=[{','.join(spec.stages.order)}] with scheduler=volcano",
            follows="nobody could see how its stages stand",
            remedy="use scheduler=kubernetes, or stages=train there: the first step calibrates, trainer.eval_every evaluates",
        )
    for stage in stages:
        if stage.name == "evaluate" and not spec.trainer.eval_data:
            raise ConfigError(
                "stage evaluate without trainer.eval_data",
                follows="there would be nothing to evaluate on",
                remedy="name held-out datasets: trainer.eval_data.NAME.path=..., or leave evaluate out of stages.order",
            )
        if stage.name not in BUILT_IN:
            (_check_function if spec.scheduler.name == "local" else _module_of)(stage)
            for path in stage.outputs:
                if _elsewhere(path) or ".." in path.split("/"):
                    raise ConfigError(
                        f"stages.own.{stage.name}.outputs: {path!r} is not below the run directory",
                        follows="the output could change or vanish without the run noticing",
                        remedy="write it below the run directory: stages get it as their first argument",
                    )


def source_of(stage: Stage) -> Path:
    """The file that holds a stage's function.

    Raises:
        ConfigError: ``call`` is not "module:function" of a module that Python finds here.
    """
    module = _module_of(stage)
    if os.getcwd() not in sys.path:  # as `python -m` has it; a console script has not
        sys.path.insert(0, os.getcwd())
    importlib.invalidate_caches()
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        found = None
    if found is None or found.origin is None or not Path(found.origin).is_file():
        raise _no_function(stage, f"names a module {module!r} that Python does not find here")
    return Path(found.origin)


def _check_function(stage: Stage) -> None:
    """Refuses a function whose name its module's text does not hold: found now, not behind the training."""
    source, function = source_of(stage), stage.call.partition(":")[2]
    if source.suffix == ".py" and not re.search(rf"\b{function}\b|import \*|__getattr__", source.read_text("utf-8", "replace")):
        raise _no_function(stage, f"names a function that {source} does not mention")


def _module_of(stage: Stage) -> str:
    module, colon, function = stage.call.partition(":")
    if not colon or not function.isidentifier():
        raise _no_function(stage, "is not of the form module:function")
    return module


def _no_function(stage: Stage, problem: str) -> ConfigError:
    return ConfigError(
        f"stages.own.{stage.name}.call={stage.call!r} {problem}",
        follows="the stage could not run",
        remedy="give an importable function, for example stages.own.NAME.call=my_package.report:main",
    )


def inputs_of(
    stage: Stage, spec: RunSpec, rundir: RunDir, *, there: bool = True, files: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """All that a stage's result depends on, as plain values.

    Args:
        files: the listing of each dataset, where the caller has it already.
        there: this process is where the stage runs; else what only that place can see is left out.

    Raises:
        ConfigError: an input that is not there.
    """
    pinned, contract = spec.fields_of("pinned"), fingerprint([spec.fields_of("pinned"), spec.fields_of("guarded")])
    if stage.name == "doctor":
        return {"spec": spec.sha256()} | ({"host": socket.gethostname(), "packages": packages()} if there else {})
    if stage.name == "calibrate":
        fields = {name: value for name, value in pinned.items() if name.startswith(("data.", "tokenizer."))}
        return {"fields": fields} | ({"files": files or listings(spec.data.datasets)} if there else {})
    if stage.name == TRAIN:
        return {"contract": contract}
    checkpoint = newest_checkpoint(rundir)
    if stage.name == "evaluate":
        held_out = spec.trainer.eval_data or {}
        fields = {name: dataclasses.asdict(one) for name, one in held_out.items()}
        tokens = spec.trainer.eval_tokens
        return {
            "contract": contract,
            "checkpoint": checkpoint,
            "held_out": fields,
            "tokens": tokens,
            **({"files": listings(held_out, at="trainer.eval_data")} if there else {}),
        }
    behind = spec.stages.order.index(stage.name) > spec.stages.order.index(TRAIN)
    return {
        "contract": contract,
        "call": stage.call,
        "options": dict(stage.options),
        "paths": {path: _digest(rundir, path, stage) for path in stage.inputs if there or not _elsewhere(path)},
        **({"source": hashlib.sha256(source_of(stage).read_bytes()).hexdigest()} if there else {}),
        **({"checkpoint": checkpoint} if behind else {}),
    }


def fingerprint(value: Any) -> str:
    """SHA-256 of plain values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False, default=str).encode()).hexdigest()


def read_record(rundir: RunDir, name: str) -> dict[str, Any] | None:
    """``stages/NAME.json`` as it stands."""
    found: dict[str, Any] | None = rundir.find_json("stages", f"{name}.json")
    return found


def read_turns(rundir: RunDir, attempt: int) -> dict[str, Any]:
    """``attempts/NNNN/stages.json``, kept by the coordinator on a cluster: ``{stages, stage, node, turn, lost, finish}``.

    ``stages`` is a list of [name, state], ``node`` has the turn number ``turn`` at ``stage``, and
    ``finish`` is how the run has ended. Empty before its first word.
    """
    found: dict[str, Any] | None = rundir.find_json("attempts", RunDir.attempt_name(attempt), "stages.json")
    return {} if found is None else found


def is_current(rundir: RunDir, stage: Stage, inputs_sha256: str) -> bool:
    """Whether the stage need not run again."""
    record = read_record(rundir, stage.name)
    return (
        record is not None
        and record["status"] == "done"
        and record["inputs_sha256"] == inputs_sha256
        and all(rundir.exists(path) for path in stage.outputs)
    )


def outstanding(spec: RunSpec, rundir: RunDir) -> list[str]:
    """Stages behind ``train`` that would run if the run went on now."""
    behind = stages_of(spec)[spec.stages.order.index(TRAIN) + 1 :]
    return [stage.name for stage in behind if would_run(stage, spec, rundir)]


def would_run(stage: Stage, spec: RunSpec, rundir: RunDir, *, files: Mapping[str, Any] | None = None) -> bool:
    """Whether the stage is not current; one whose input is not there yet is not. A cluster's is judged by what is seen here."""
    there = spec.scheduler.name == "local"
    try:
        inputs = inputs_of(stage, spec, rundir, there=there, files=files)
    except ConfigError:
        return True
    if there:
        return not is_current(rundir, stage, fingerprint(inputs))
    record = read_record(rundir, stage.name)
    if record is None or not is_current(rundir, stage, record.get("inputs_sha256", "")):
        return True
    known = {name: value for name, value in record["inputs"].items() if name in inputs}
    if "paths" in inputs:
        known["paths"] = {path: value for path, value in known.get("paths", {}).items() if path in inputs["paths"]}
    return fingerprint(known) != fingerprint(inputs)


def _digest(rundir: RunDir, path: str, stage: Stage) -> str:
    """A file by its content, a directory by the names and sizes below it."""
    fs, where = fsspec.core.url_to_fs(path) if _elsewhere(path) else (rundir.fs, rundir.path(path))
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


def _elsewhere(path: str) -> bool:
    return "://" in path or path.startswith("/")
