"""The page of a run as a stage of it, and written to any place: ``report.html`` of the run directory, or a path."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from zephon.errors import ConfigError
from zephon.fastjson import Json
from zephon.report.page import page
from zephon.report.run import RunRecord, read_run
from zephon.run.directory import REPORT, RunDir
from zephon.spec.experiment import RunSpec


def report(run: RunDir, spec: RunSpec) -> Json:
    """Writes ``report.html`` of the run directory; the stage ``report``.

    Raises:
        ConfigError: the plotting library is not installed.
    """
    record = read_run(run)
    run.write_bytes(REPORT, data=page([record]).encode())
    return {"steps": record.steps, "file": REPORT}


def write_page(records: Sequence[RunRecord], out: Path) -> None:
    """Writes the page of some runs, as a whole, to a file of this machine.

    Raises:
        ConfigError: the plotting library is not installed, or the file cannot be written.
    """
    text = page(records)
    scratch = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(text, "utf-8")
        scratch.replace(out)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise ConfigError(
            f"the page cannot be written to {out}: {error}",
            remedy="give another place with --out FILE.html",
        ) from error
