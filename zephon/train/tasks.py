"""Multiple choice by likelihood: the choice whose tokens have the lowest mean loss after the prompt is the model's answer.

As CORE does it (DataComp-LM: Li et al., 2024). An item is scored alone, in one process, so that its score depends on the
weights alone: not on the number of ranks that trained them or saved the checkpoint, nor on any setting of performance.

    python -m zephon.train.tasks --run URL --tasks FILE.jsonl [--tasks FILE.jsonl ...] [--step N]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from zephon.errors import ConfigError, ZephonError
from zephon.ops.tokenizers import Tokenizer, load_tokenizer
from zephon.run.directory import RunDir
from zephon.run.evaluation import TaskScore, write_tasks
from zephon.run.specs import newest_spec
from zephon.train.distributed import choose_device
from zephon.train.model import Decoder, assign
from zephon.train.task_files import Item, read_items
from zephon.train.weights import read_weights
from zephon.types import IGNORE_INDEX


class Scorer:
    """A model with its tokenizer.

    Args:
        length: tokens of context and continuation together, at most; the beginning of longer ones is cut off.
        begin: the id that stands before each text, as in training; None where there is none.
    """

    def __init__(self, model: Decoder, tokenizer: Tokenizer, *, length: int, begin: int | None, device: torch.device) -> None:
        self._model, self._tokenizer, self._length, self._begin, self._device = model, tokenizer, length, begin, device

    @torch.no_grad()
    def choose(self, item: Item) -> tuple[int, bool]:
        """(the place of the most likely choice, whether a text was too long). Of equals it is the first."""
        texts = [self._ids(*pair) for pair in item.pairs]
        longest = max(len(ids) for ids, _ in texts)
        truncated = longest > self._length + 1
        rows, labels = [], []
        for ids, scored in texts:
            kept = ids[-(self._length + 1) :]
            scored = max(1, scored - (len(ids) - len(kept)))
            padding = min(longest, self._length + 1) - len(kept)
            rows.append([*kept[:-1], *[0] * padding])
            labels.append([IGNORE_INDEX] * (scored - 1) + kept[scored:] + [IGNORE_INDEX] * padding)
        targets = torch.tensor(labels, device=self._device)
        _, losses = self._model(torch.tensor(rows, device=self._device), None, targets)
        means = losses.double().sum(1) / (targets != IGNORE_INDEX).sum(1)
        return int(means.argmin()), truncated

    def _ids(self, context: str, continuation: str) -> tuple[list[int], int]:
        """(ids of both, the first place that is scored): what the context alone has in common is context."""
        whole, before = (ids.tolist() for ids in self._encoded([context + continuation, context]))
        start = 0 if self._begin is None else 1
        ids = [*([] if self._begin is None else [self._begin]), *whole]
        same = next((i for i, (a, b) in enumerate(zip(whole, before, strict=False)) if a != b), min(len(whole), len(before)))
        scored = max(1, start + min(same, len(whole) - 1))
        if len(ids) < 2:
            raise ConfigError(
                f"the text {context + continuation!r} is one token, with nothing before it",
                follows="a model could not say how likely it is",
                remedy="give a prompt, or train with tokenizer.special_tokens=bos_eos",
            )
        return ids, scored

    def _encoded(self, texts: list[str]) -> list[Tensor]:
        ragged = self._tokenizer.encode(texts)
        return [torch.from_numpy(ragged[i].astype("int64")) for i in range(len(texts))]


def score(scorer: Scorer, items: Sequence[Item], *, step: int) -> list[TaskScore]:
    """The score of each task, by name."""
    by_task: dict[str, list[Item]] = {}
    for item in items:
        by_task.setdefault(item.task, []).append(item)
    scores = []
    for task, own in sorted(by_task.items()):
        answers = [scorer.choose(item) for item in own]
        correct = sum(choice == item.answer for (choice, _), item in zip(answers, own, strict=True))
        guessed = sum(1 / len(item.pairs) for item in own) / len(own)
        truncated = sum(cut for _, cut in answers)
        scores.append(TaskScore(task=task, step=step, items=len(own), correct=correct, baseline=guessed, truncated=truncated))
    return scores


def evaluate_tasks(run: RunDir, files: Sequence[Path], *, step: int | None = None) -> list[TaskScore]:
    """Scores a checkpoint (by default the newest) on all tasks of some files, and writes them to ``tasks.json``.

    Raises:
        ConfigError, DataError: a file that is not there, or a line that is no item.
        StateError: there is no complete checkpoint of that step.
    """
    items = [item for file in files for item in read_items(file)]
    chosen, weights = read_weights(run, step=step)
    spec = newest_spec(run)
    device = choose_device(spec.trainer.device, local_rank=0)
    torch.set_num_threads(spec.trainer.torch_threads or 1)
    model = Decoder(spec.model, len(weights["embed.weight"]))
    for name, parameter in model.named_parameters():
        assign(parameter, weights[name])
    tokenizer = load_tokenizer(spec.tokenizer.id, backend=spec.tokenizer.backend)
    begins = spec.tokenizer.special_tokens in ("bos", "bos_eos")
    length, begin = spec.pipeline.context_length, tokenizer.bos_id if begins else None
    scorer = Scorer(model.to(device).eval(), tokenizer, length=length, begin=begin, device=device)
    scores = score(scorer, items, step=chosen)
    write_tasks(run, scores)
    return scores


def table(scores: Sequence[TaskScore]) -> str:
    """Lines of text: each task, and the mean of the centred accuracies, which for CORE's tasks is CORE."""
    width = max(len("task"), *(len(score.task) for score in scores)) + 2
    lines = [f"{'task':<{width}}{'items':>8}{'accuracy':>10}{'guessing':>10}{'centred':>10}"]
    for task in scores:
        lines.append(f"{task.task:<{width}}{task.items:>8,}{task.accuracy:>10.4f}{task.baseline:>10.4f}{task.centred:>10.4f}")
        if task.truncated:
            lines.append(f"{'':<{width}}{task.truncated:,} of them were longer than the context: their beginning was cut off")
    mean = sum(task.centred for task in scores) / len(scores)
    return "\n".join([*lines, f"step {scores[0].step}; mean of the centred accuracies {mean:.4f}"])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m zephon.train.tasks", description="Scores a checkpoint on multiple choice.")
    parser.add_argument("--run", required=True, metavar="URL", help="the run directory")
    parser.add_argument("--tasks", required=True, action="append", type=Path, metavar="FILE", help="a file of JSON lines")
    parser.add_argument("--step", type=int, help="which checkpoint; the newest by default")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args(argv)
    try:
        scores = evaluate_tasks(RunDir(chosen.run), chosen.tasks, step=chosen.step)
    except ZephonError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    if chosen.json:
        print(json.dumps([{**asdict(task), "accuracy": task.accuracy, "centred": task.centred} for task in scores]))
    else:
        print(table(scores))
    return 0


if __name__ == "__main__":
    sys.exit(main())
