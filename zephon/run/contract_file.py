"""``contract.json``: what a run has promised. The launcher writes it with every start; what it means is launch/contract.py's.

version     of this file
pinned      values that never change                  field -> value
guarded     values that change only where allowed     field -> value
allowed     the changes that were                     field, kind, run, now, attempt, time
files       names and sizes of the data files         dataset -> {files, size, sha256}; where the launcher sees them
parent      of a fork                                 run, step, changes
"""

from __future__ import annotations

from zephon.run.directory import RunDir
from zephon.types import Json

_FILE = "contract.json"


def has_contract(rundir: RunDir) -> bool:
    """Whether the run was ever started."""
    return rundir.exists(_FILE)


def read_contract(rundir: RunDir) -> Json:
    """Raises FileNotFoundError: the run was never started."""
    found: Json = rundir.read_json(_FILE)
    return found


def write_contract(rundir: RunDir, contract: Json) -> None:
    rundir.write_json(_FILE, data=contract)
