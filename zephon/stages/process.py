"""The process of one stage: ``python -m zephon.stages.process --run URL --attempt N --stage NAME``.

It looks at the stage's inputs, skips it or runs it, and keeps ``stages/NAME.json``. Exit status: 0 done or skipped, 65 refused,
1 failed, 75 another node has the turn by now; whoever started it writes the record where it could not (killed, stopped).
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import sys
import time
import traceback
from typing import Any

from zephon.errors import ConfigError, ZephonError
from zephon.exits import Exit
from zephon.run.directory import RunDir
from zephon.run.specs import read_spec
from zephon.spec.experiment import RunSpec
from zephon.stages.stage import (
    Stage,
    fingerprint,
    inputs_of,
    is_current,
    read_record,
    read_turns,
    source_of,
    stages_of,
)

log = logging.getLogger("zephon.stage")


def run_stage(rundir: RunDir, attempt: int, stage: Stage, spec: RunSpec, *, turn: int | None = None) -> int:
    """Runs one stage unless it is current; returns the exit status. Only the newest ``turn`` may write the record."""

    def write(record: dict[str, Any], **more: Any) -> None:
        newest = read_turns(rundir, attempt).get("turn", 0)
        if turn is not None and turn < newest:
            log.info("stage %s: turn %d is over, another node has turn %d", stage.name, turn, newest)
            raise SystemExit(Exit.DRAINED)
        rundir.write_json("stages", f"{record['name']}.json", data={**record, **more})

    record: dict[str, Any] = {"name": stage.name, "call": stage.call, "attempt": attempt, "started": time.time()}
    status: int = Exit.FAILED
    try:
        inputs = inputs_of(stage, spec, rundir)
        record |= {"inputs": inputs, "inputs_sha256": fingerprint(inputs)}
        if is_current(rundir, stage, record["inputs_sha256"]):
            since = (read_record(rundir, stage.name) or {}).get("attempt")
            log.info("stage %s: skipped, its inputs are unchanged since attempt %s", stage.name, since)
            return Exit.DONE
        write(record, status="running")
        log.info("stage %s: runs %s", stage.name, stage.call)
        result = _plain(_function(stage)(rundir, spec, **stage.options), stage)
        outputs = {path: _size(rundir, path, stage) for path in stage.outputs}
    except ZephonError as error:
        print(f"error: {error}", file=sys.stderr)
        record, status = record | {"error": error.what}, error.exit_status
    except Exception as error:  # noqa: BLE001 - a user's function: whatever it raises is the stage's error
        traceback.print_exc()
        record |= {"error": f"{type(error).__name__}: {error}"}
    else:
        write(record, status="done", ended=time.time(), outputs=outputs, result=result)
        log.info("stage %s: done in %.1f s", stage.name, time.time() - record["started"])
        return Exit.DONE
    write(record, status="failed", ended=time.time())
    return status


def _function(stage: Stage) -> Any:
    source_of(stage)
    module, _, name = stage.call.partition(":")
    found = getattr(importlib.import_module(module), name, None)
    if not callable(found):
        raise ConfigError(
            f"stage {stage.name}: {module} has no function {name!r}",
            follows="the stage could not run",
            remedy=f"correct stages.own.{stage.name}.call",
        )
    return found


def _plain(result: Any, stage: Stage) -> Any:
    try:
        return json.loads(json.dumps(result))
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
    parser.add_argument("--turn", type=int, help="number of this try, where nodes take turns")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname).1s %(name)s: %(message)s", stream=sys.stderr)
    rundir = RunDir(arguments.run)
    spec = read_spec(rundir, arguments.attempt)
    (stage,) = (one for one in stages_of(spec) if one.name == arguments.stage)
    return run_stage(rundir, arguments.attempt, stage, spec, turn=arguments.turn)


if __name__ == "__main__":
    sys.exit(main())
