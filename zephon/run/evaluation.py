"""What a checkpoint can do: its loss on held-out data, and its accuracy on tasks.

evaluation.json    loss on ``trainer.eval_data``, by the stage ``evaluate``
tasks.json         accuracy by task, by ``zephon evaluate RUN --tasks FILE``; a later evaluation replaces a task's line
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from zephon.run.directory import RunDir
from zephon.run.plain import as_record

FILE = "evaluation.json"
_TASKS = "tasks.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldOutLoss:
    """``loss`` per token over ``tokens`` of held-out data, of the checkpoint of ``step``; ``by_dataset`` the loss of each."""

    step: int
    loss: float
    tokens: int
    by_dataset: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskScore:
    """One task's result with the checkpoint of ``step``.

    Args:
        items, correct: how many, and of how many the most likely choice is the answer.
        baseline: accuracy of guessing, the mean of 1 / choices.
        truncated: items whose beginning did not fit into the context.
    """

    task: str
    step: int
    items: int
    correct: int
    baseline: float
    truncated: int = 0

    @property
    def accuracy(self) -> float:
        return self.correct / self.items

    @property
    def centred(self) -> float:
        """0 for guessing and 1 for no mistake, as CORE has it (DataComp-LM: Li et al., 2024)."""
        return (self.accuracy - self.baseline) / (1.0 - self.baseline)


def read_evaluation(rundir: RunDir) -> HeldOutLoss | None:
    """None before the stage is done."""
    return as_record(HeldOutLoss, rundir.find_json(FILE))


def write_evaluation(rundir: RunDir, evaluation: HeldOutLoss) -> None:
    rundir.write_json(FILE, data=dataclasses.asdict(evaluation))


def read_tasks(rundir: RunDir) -> list[TaskScore]:
    """Every task that was evaluated, by name and step."""
    data = rundir.find_json(_TASKS)
    scores = [as_record(TaskScore, entry) for entry in (data if isinstance(data, list) else [])]
    return [score for score in scores if score is not None]


def write_tasks(rundir: RunDir, scores: Sequence[TaskScore]) -> None:
    """Adds scores to those on record; one of the same task and step is replaced."""
    known = {(score.task, score.step): score for score in [*read_tasks(rundir), *scores]}
    rundir.write_json(_TASKS, data=[dataclasses.asdict(known[key]) for key in sorted(known)])
