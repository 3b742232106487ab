"""The walk over a run's stages: which one is due, the state of each, and how the attempt ends.

    walk = Walk(stages_of(spec))
    while (stage := walk.next(trained=...)) is not None:
        walk.end(<carry out the stage>)
    walk.finish                                    how the attempt has ended

It decides and does nothing: on this machine the supervisor carries the stages out, on a cluster the coordinator orders it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from zephon.exits import Exit
from zephon.run.stage_records import StageState
from zephon.stages.stage import TRAIN, Stage

OVER: tuple[StageState, ...] = ("done", "skipped")


@dataclasses.dataclass(frozen=True)
class StageEnd:
    """How a stage has ended.

    Args:
        state: what is shown for the stage from now on.
        status: exit status of the attempt if it ends with this stage; 0 where the walk goes on.
        cause: why, in one sentence.
    """

    state: StageState
    status: int
    cause: str


class Walk:
    """Call ``next`` until it returns None, and ``end`` after each stage.

    Args:
        stages: all stages of the run, in order.
        states: what an earlier process of this attempt has recorded; stages that are over do not run again.
    """

    def __init__(self, stages: Sequence[Stage], states: Mapping[str, StageState] | None = None) -> None:
        self._stages = tuple(stages)
        self.states: dict[str, StageState] = {stage.name: (states or {}).get(stage.name, "waiting") for stage in stages}
        self.stage = ""
        """the stage that is under way; empty before the first and after the last one"""
        self.finish: StageEnd | None = None
        """how the attempt has ended; None before"""

    @property
    def alone(self) -> bool:
        """Whether training is all."""
        return len(self._stages) == 1

    def next(self, *, trained: bool) -> Stage | None:
        """The stage that is due; None when the last one is over or one has not ended well.

        Args:
            trained: all steps are saved already. Then there is nothing to train, and the stages after it are due.
        """
        for stage in self._stages:
            if self.finish is not None:
                break
            if self.states[stage.name] in OVER:
                continue
            if stage.name == TRAIN and trained and not self.alone:
                # Where an earlier coordinator recorded it as running, this attempt has trained the steps itself.
                self.states[TRAIN] = "done" if self.states[TRAIN] == "running" else "skipped"
                continue
            self.stage = stage.name
            return stage
        self.stage = ""
        self.finish = self.finish or StageEnd("done", Exit.DONE, "all stages are done")
        return None

    def begin(self) -> None:
        """The stage that is due has been started."""
        self.states[self.stage] = "running"

    def end(self, end: StageEnd) -> None:
        """The stage that was due has ended. With a status other than 0, or as the only one, it ends the attempt."""
        self.states[self.stage] = end.state
        if end.status or self.alone:
            self.finish = end

    def put_back(self, state: StageState) -> None:
        """No process runs the stage any more: it is due again, and its state is ``state``."""
        self.states[self.stage] = state

    def stop(self) -> None:
        """The attempt is asked to stop between two stages."""
        self.finish = StageEnd("stopped", Exit.LEFT, "stopped")

    def training_is_over(self) -> bool:
        return self.states[TRAIN] in OVER
