"""A run as a list of stages: which there are, and what must hold before a start.

doctor -> calibrate -> train -> evaluate -> report

A stage is a function ``(run: RunDir, spec: RunSpec, **options) -> small dict or None``, named "module:function". The built-in
stages are such functions too, except ``train``, which the attempt's nodes carry out. Nothing here starts anything.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zephon.errors import ConfigError, nearest
from zephon.run import calibration, evaluation
from zephon.run.directory import REPORT
from zephon.spec.experiment import RunSpec

TRAIN = "train"


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
    "report": Stage(name="report", call="zephon.report.stage:report", outputs=(REPORT,)),
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
            name: Stage(
                name=name, call=declared.call, inputs=declared.inputs, outputs=declared.outputs, options=declared.options
            )
            for name, declared in own.items()
        },
    }
    for name in own:
        if name in BUILT_IN or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
            raise ConfigError(
                f"stages.own.{name}: " + ("the name of a built-in stage" if name in BUILT_IN else "no name for a stage"),
                follows="two stages would share one record",
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


def check(spec: RunSpec, *, here: bool) -> None:
    """What must hold before a start.

    Args:
        here: the stages run on this machine. On a cluster the nodes check what only they see.

    Raises:
        ConfigError: see ``stages_of``; also a function that is not there, or held-out data that is missing.
    """
    for stage in stages_of(spec):
        if stage.name == "evaluate" and not spec.trainer.eval_data:
            raise ConfigError(
                "stage evaluate without trainer.eval_data",
                follows="there would be nothing to evaluate on",
                remedy="name held-out datasets: trainer.eval_data.NAME.path=..., or leave evaluate out of stages.order",
            )
        if stage.name not in BUILT_IN:
            (_check_function if here else _module_of)(stage)
            for path in stage.outputs:
                if elsewhere(path) or ".." in path.split("/"):
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
    if os.getcwd() not in sys.path:  # `python -m` adds it, a console script does not
        sys.path.insert(0, os.getcwd())
    importlib.invalidate_caches()
    try:
        module_spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        module_spec = None
    if module_spec is None or module_spec.origin is None or not Path(module_spec.origin).is_file():
        raise _no_function(stage, f"names a module {module!r} that Python does not find here")
    return Path(module_spec.origin)


def _check_function(stage: Stage) -> None:
    """Refuses a function that its module does not mention: before the start, and not after the training."""
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


def elsewhere(path: str) -> bool:
    """Whether a path of a stage is not below the run directory."""
    return "://" in path or path.startswith("/")
