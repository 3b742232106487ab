"""Stages of a user's own, for the tests of the launcher."""

from __future__ import annotations

import os
import time
from typing import Any

from zephon.run.directory import RunDir
from zephon.spec.experiment import RunSpec


def summary(run: RunDir, spec: RunSpec, *, top: int = 1) -> dict[str, Any]:
    """Writes one file from another's content."""
    loss = run.read_json("evaluation.json")["loss"] if run.exists("evaluation.json") else None
    run.write_json("summary.json", data={"name": spec.name, "loss": loss, "top": top})
    return {"top": top}


def once_then_quick(run: RunDir, spec: RunSpec) -> dict[str, Any]:
    """Hangs the first time and is quick the second."""
    if run.create("seen.json", data={}):
        time.sleep(600)
    run.write_json("made.json", data={})
    return {}


def broken(run: RunDir, spec: RunSpec) -> None:
    raise RuntimeError("this stage is broken")


def forgetful(run: RunDir, spec: RunSpec) -> None:
    """Does not write what it has promised."""


def unwritable(run: RunDir, spec: RunSpec) -> object:
    return {"value": object()}


def until_mended(run: RunDir, spec: RunSpec) -> None:
    """Fails until somebody has mended what is wrong."""
    if not run.exists("mended.json"):
        raise RuntimeError("somebody has to mend this")


def until_told(run: RunDir, spec: RunSpec, *, name: str) -> dict[str, Any]:
    """Goes on when it is told to; notes each try."""
    tries = len(run.fs.ls(run.path(name))) if run.exists(name) else 0
    run.write_json(name, f"try-{tries}.json", data={"pid": os.getpid()})
    while not run.exists(f"{name}-told.json"):
        time.sleep(0.05)
    return {"tries": tries + 1}
