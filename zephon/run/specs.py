"""The specs of a run: ``spec.json`` of its first start, ``attempts/NNNN/spec.json`` of each attempt, which is what it runs.

An attempt exists from the moment its spec does: two starts at the same time get two numbers.
"""

from __future__ import annotations

from zephon.errors import ConfigError
from zephon.run.directory import RunDir
from zephon.spec.experiment import RunSpec

FILE = "spec.json"


def new_attempt(rundir: RunDir, spec: RunSpec) -> int:
    """Stores the spec of a new attempt and returns its number. The run keeps the spec of its first start."""
    attempt = max(rundir.attempts(), default=0) + 1
    while not rundir.create(*RunDir.in_attempt(attempt, FILE), data=spec.to_dict()):
        attempt += 1
    rundir.create(FILE, data=spec.to_dict())
    return attempt


def read_spec(rundir: RunDir, attempt: int) -> RunSpec:
    """The spec of an attempt.

    Raises:
        ConfigError: there is none, or it is not one of this version.
    """
    if not has_spec(rundir, attempt):
        raise ConfigError(
            f"{rundir.path(*RunDir.in_attempt(attempt, FILE))} does not exist",
            follows="nobody would know what to train",
            remedy="start the run with `zephon run`",
        )
    return RunSpec.from_dict(rundir.read_json(*RunDir.in_attempt(attempt, FILE)))


def find_spec(rundir: RunDir, attempt: int) -> RunSpec | None:
    """As ``read_spec``, but None where there is no spec that this version can read."""
    data = rundir.find_json(*RunDir.in_attempt(attempt, FILE))
    try:
        return RunSpec.from_dict(data) if isinstance(data, dict) else None
    except ConfigError:
        return None


def first_spec(rundir: RunDir) -> RunSpec | None:
    """The spec of the run's first start."""
    data = rundir.find_json(FILE)
    return None if data is None else RunSpec.from_dict(data)


def newest_spec(rundir: RunDir) -> RunSpec:
    """The spec of the newest attempt: the record is enough to go on, no config folder is needed."""
    return read_spec(rundir, rundir.attempts()[-1])


def has_spec(rundir: RunDir, attempt: int) -> bool:
    return rundir.exists(*RunDir.in_attempt(attempt, FILE))


def write_spec(rundir: RunDir, attempt: int, spec: RunSpec) -> None:
    """Writes the spec of an attempt that no launcher has written here: a pod's comes from its ConfigMap."""
    rundir.write_json(*RunDir.in_attempt(attempt, FILE), data=spec.to_dict())
