"""``calibration.json``: what each dataset's sample holds, ``{name: [tokens, bytes, standard error in millionths, documents]}``.

Measured once, by the stage ``calibrate`` or by rank 0, since the mixture of all later steps follows from it.
"""

from __future__ import annotations

from zephon.run.directory import RunDir
from zephon.types import Counts, Sampled

FILE = "calibration.json"


def read_calibration(rundir: RunDir) -> Counts | None:
    """None before the run was measured."""
    if not rundir.exists(FILE):
        return None
    return {name: Sampled(*numbers) for name, numbers in rundir.read_json(FILE).items()}


def write_calibration(rundir: RunDir, counts: Counts) -> None:
    rundir.write_json(FILE, data=dict(counts))


def forget_calibration(rundir: RunDir) -> None:
    """The next start measures again."""
    if rundir.exists(FILE):
        rundir.fs.rm(rundir.path(FILE))
