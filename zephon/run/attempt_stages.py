"""``attempts/NNNN/stages.json``: the states of an attempt's stages, where nodes carry them out. The coordinator writes it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping

from zephon.run.directory import RunDir
from zephon.run.plain import as_record
from zephon.run.stage_records import StageState

_FILE = "stages.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttemptStages:
    """What the coordinator knows of the stages; one that is started again continues from it.

    Args:
        states: the state of each stage, in order; empty before the coordinator has written.
        stage: the stage that is under way, empty before the first and after the last.
        node: the node that carries it out, where one is enough.
        token: the newest fencing token: a node with an older one may not write the stage's record.
        lost: how many nodes were lost in this stage.
        status, cause: how the attempt has ended; None while it goes on.
    """

    states: Mapping[str, StageState] = dataclasses.field(default_factory=dict)
    stage: str = ""
    node: str = ""
    token: int = 0
    lost: int = 0
    status: int | None = None
    cause: str = ""


def read_attempt_stages(rundir: RunDir, attempt: int) -> AttemptStages:
    """An empty record where the coordinator has not written yet."""
    known = as_record(AttemptStages, rundir.find_json(*RunDir.in_attempt(attempt, _FILE))) or AttemptStages()
    return dataclasses.replace(known, states=dict(known.states))


def write_attempt_stages(rundir: RunDir, attempt: int, known: AttemptStages) -> None:
    # A list keeps the order of the stages, which an object in a file with sorted keys would lose.
    data = {**dataclasses.asdict(known), "states": [[*entry] for entry in known.states.items()], "time": time.time()}
    rundir.write_json(*RunDir.in_attempt(attempt, _FILE), data=data)
