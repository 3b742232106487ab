"""``decisions.json``: the mixtures that a controller has decided on, each written before it takes effect.

A run that is resumed, rescaled or killed follows what is written here, and another run may follow it too
(``data.decisions=RUN``). So a decision is made once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from zephon.run.directory import RunDir

FILE = "decisions.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decision:
    """One decision.

    Args:
        step: made when so many steps were done.
        effective: about the first step with the new mixture.
        token: the token of the plan at which it begins, which is exact.
        weights: of the datasets, in tokens.
    """

    step: int
    effective: int
    token: int
    weights: Mapping[str, float]


def read_decisions(rundir: RunDir) -> tuple[Decision, ...] | None:
    """In order; None where the run has made and taken over none."""
    if not rundir.exists(FILE):
        return None
    return tuple(Decision(**decision) for decision in rundir.read_json(FILE)["decisions"])


def write_decisions(rundir: RunDir, decisions: Sequence[Decision]) -> None:
    """Replaces the file as a whole."""
    rundir.write_json(FILE, data={"version": 1, "decisions": [dataclasses.asdict(decision) for decision in decisions]})
