"""The process of one stage: ``python -m zephon.stages.process --run URL --attempt N --stage NAME``.

It compares the stage's inputs, runs or skips it, and writes ``stages/NAME.json``. Exit status: 0 done or skipped, 65 refused,
1 failed, 75 another node has a newer fencing token; its parent writes the record where it cannot (killed, stopped).
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import logging
import sys
import time
import traceback
from collections.abc import Callable

from zephon.errors import ConfigError, ZephonError
from zephon.exits import Exit
from zephon.run.attempt_stages import read_attempt_stages
from zephon.run.directory import RunDir
from zephon.run.specs import read_spec
from zephon.run.stage_records import StageRecord, read_record, write_record
from zephon.spec.experiment import RunSpec
from zephon.stages.inputs import fingerprint, inputs_of
from zephon.stages.record import is_current
from zephon.stages.stage import Stage, source_of, stages_of

log = logging.getLogger("zephon.stage")


def run_stage(rundir: RunDir, attempt: int, stage: Stage, spec: RunSpec, *, token: int | None = None) -> int:
    """Runs one stage unless it is current; returns the exit status. Only the newest ``token`` may write the record."""

    def write(record: StageRecord) -> None:
        newest = read_attempt_stages(rundir, attempt).token
        if token is not None and token < newest:
            log.info("stage %s: fencing token %d is out of date, another node has %d", stage.name, token, newest)
            raise SystemExit(Exit.DRAINED)
        write_record(rundir, record)

    started, status = time.time(), int(Exit.FAILED)
    record = StageRecord(name=stage.name, call=stage.call, attempt=attempt, status="running", started=started)
    try:
        inputs = inputs_of(stage, spec, rundir)
        record = dataclasses.replace(record, inputs=inputs, inputs_sha256=fingerprint(inputs))
        if is_current(rundir, stage, record.inputs_sha256):
            before = read_record(rundir, stage.name)
            since = before.attempt if before else attempt
            log.info("stage %s: skipped, its inputs are unchanged since attempt %s", stage.name, since)
            return Exit.DONE
        write(record)
        log.info("stage %s: runs %s", stage.name, stage.call)
        result = _plain(_function(stage)(rundir, spec, **stage.options), stage)
        outputs = {path: _size(rundir, path, stage) for path in stage.outputs}
    except ZephonError as error:
        print(f"error: {error}", file=sys.stderr)
        record, status = dataclasses.replace(record, error=error.what), error.exit_status
    except Exception as error:  # noqa: BLE001 - a user's function: whatever it raises is the stage's error
        traceback.print_exc()
        record = dataclasses.replace(record, error=f"{type(error).__name__}: {error}")
    else:
        write(dataclasses.replace(record, status="done", ended=time.time(), outputs=outputs, result=result))
        log.info("stage %s: done in %.1f s", stage.name, time.time() - started)
        return Exit.DONE
    write(dataclasses.replace(record, status="failed", ended=time.time()))
    return status


def _function(stage: Stage) -> Callable[..., object]:
    source_of(stage)
    module, _, name = stage.call.partition(":")
    function: object = getattr(importlib.import_module(module), name, None)
    if not callable(function):
        raise ConfigError(
            f"stage {stage.name}: {module} has no function {name!r}",
            follows="the stage could not run",
            remedy=f"correct stages.own.{stage.name}.call",
        )
    return function


def _plain(result: object, stage: Stage) -> object:
    try:
        plain: object = json.loads(json.dumps(result))
        return plain
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"stage {stage.name} returned something that JSON cannot hold: {error}",
            follows="its result could not be recorded",
            remedy="return a small dict of numbers and texts, or None; write anything else into the run directory",
        ) from error


def _size(rundir: RunDir, path: str, stage: Stage) -> int:
    if not rundir.exists(path):
        raise ConfigError(
            f"stage {stage.name} ended without its output {path}",
            follows="later stages would work on nothing",
            remedy=f"let it write that file below the run directory, or correct stages.own.{stage.name}.outputs",
        )
    return int(rundir.fs.du(rundir.path(path)))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m zephon.stages.process", description=__doc__, allow_abbrev=False)
    parser.add_argument("--run", required=True)
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--stage", required=True)
    parser.add_argument("--token", type=int, help="fencing token of this order, where nodes carry stages out")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname).1s %(name)s: %(message)s", stream=sys.stderr)
    rundir = RunDir(arguments.run)
    spec = read_spec(rundir, arguments.attempt)
    (stage,) = (stage for stage in stages_of(spec) if stage.name == arguments.stage)
    return run_stage(rundir, arguments.attempt, stage, spec, token=arguments.token)


if __name__ == "__main__":
    sys.exit(main())
