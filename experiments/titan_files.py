"""The third arm's worker: TorchTitan's own text loader in the product's trainer, where torchtitan is installed.

    python -m experiments.titan_files --run URL --attempt N

Its state is saved and loaded as TorchTitan saves and loads it. With ZEPHON_EXPERIMENT_ANEW set, the state is excluded, as
``--checkpoint.exclude_from_loading dataloader`` does.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from experiments.arms import TITAN, Corpus, Setting, cut, digests, losses, rows, spec_of, train
from experiments.recording import recorded
from zephon.cursor import Cursor, SavedState
from zephon.errors import StateError
from zephon.run.directory import RunDir
from zephon.run.ledger import sequence_digest
from zephon.spec.experiment import RunSpec
from zephon.train.distributed import Membership
from zephon.train.feed import job_for
from zephon.train.session import Job
from zephon.train.step import StepBatch, TokenRows
from zephon.train.worker import arguments_of, main
from zephon.types import DropSummary

ANEW = "ZEPHON_EXPERIMENT_ANEW"


class TitanFiles:
    """The steps of one rank, from TorchTitan's loader: each rank has its part of the documents of each dataset."""

    def __init__(self, spec: RunSpec, run: RunDir, rank: int, size: int) -> None:
        from torchtitan.components.tokenizer import HuggingFaceTokenizer
        from torchtitan.hf_datasets import text_datasets as theirs

        self._run, self._rank, self._share, self._step = run, rank, spec.global_batch_size // size, 0
        for name, dataset in spec.data.datasets.items():
            load = _Streamed(sorted(map(str, Path(dataset.path).glob("*.jsonl"))))
            theirs.DATASETS[name] = theirs.DatasetConfig(path="", loader=load, sample_processor=_text)
        weights = {name: dataset.weight for name, dataset in spec.data.datasets.items()}
        sources = [theirs.HFDataSource(dataset=name, weight=weight, infinite=True) for name, weight in weights.items()]
        config = theirs.InterleavedHuggingFaceTextDataLoader.Config(sources=sources, seed=spec.data.seed)
        self._loader = config.build(
            dp_world_size=size,
            dp_rank=rank,
            tokenizer=HuggingFaceTokenizer(tokenizer_path=spec.tokenizer.id),
            seq_len=spec.pipeline.context_length,
            local_batch_size=self._share,
        )

    def restore(self, state: SavedState) -> None:
        self._step = state["step"]
        if os.environ.get(ANEW):
            return
        saved = [Path(file).read_bytes() for file in sorted(self._run.fs.glob(self._saved(self._step, "*")))]
        together = {key: value for part in saved for key, value in pickle.loads(part).items()}
        try:
            self._loader.load_state_dict(together)
        except (AssertionError, KeyError) as error:
            raise StateError(f"TorchTitan's loader: {error}", remedy="resume on the number of ranks that saved") from error

    def steps(self) -> Iterator[StepBatch]:
        first = self._rank * self._share
        for step, (inputs, labels) in enumerate(self._loader, self._step):
            ids, positions = inputs["input"], inputs["positions"]
            whole = np.concatenate([ids.numpy(), labels[:, -1:].numpy()], axis=1)
            hashed = {first + slot: sequence_digest(row) for slot, row in enumerate(whole)}
            Path(self._saved(step + 1, self._rank)).write_bytes(pickle.dumps(self._loader.state_dict()))
            state = {"step": step + 1, "lanes": {self._rank: Cursor().encode()}}
            taken = TokenRows(input_ids=ids, labels=labels, positions=positions)
            yield StepBatch(step=step, rows=taken, digests=hashed, state=state)

    def _saved(self, step: int, rank: object) -> str:
        """Where a rank's state after so many steps is: lanes of a checkpoint hold cursors and nothing else."""
        return self._run.path(f"titan-{step}-{rank}.pickle")

    def dropped_at_end(self, state: SavedState | None) -> list[tuple[int, DropSummary]]:
        return []

    def close(self) -> None:
        pass


class _Streamed:
    """A dataset as TorchTitan loads it: the rows of these files, streamed."""

    def __init__(self, files: list[str]) -> None:
        self._files = files

    def __call__(self, path: str) -> Any:
        from datasets import load_dataset

        return load_dataset("json", data_files=self._files, split="train", streaming=True)


def _text(sample: dict[str, Any]) -> str:
    return str(sample["text"])


def beside(text: Corpus, setting: Setting, folder: Path, begun: int) -> list[tuple[object, ...]]:
    """Rows for the table of `experiments.resume`: what this arm does on every number of ranks, and with its state excluded."""
    half, cells = setting.steps // 2, list[tuple[object, ...]]()
    spec = spec_of(text, setting, TITAN, folder / "whole", name=f"titan-{begun}")
    unbroken = train(spec, TITAN, begun)
    expected, wanted, before = digests(unbroken), losses(unbroken), set(rows(unbroken, range(half)))
    after = range(half, setting.steps)
    for anew in (False, True):
        for ranks in setting.sizes:
            runs = cut(unbroken, half, folder / f"at-{ranks}-{'anew' if anew else 'state'}")
            name = f"{TITAN.name}{', state excluded' if anew else ''}"
            os.environ[ANEW] = "1" if anew else ""
            try:
                run = train(dataclasses.replace(spec, runs=str(runs)), TITAN, ranks)
            except RuntimeError as error:
                why = "refused" if "TorchTitan's loader" in str(error) else str(error)[:80]
                cells.append((name, begun, ranks, why, "", ""))
                continue
            finally:
                del os.environ[ANEW]
            equal = sum(digests(run)[step] == expected[step] for step in after)
            apart = max(abs(losses(run)[step] - wanted[step]) for step in after)
            twice = sum(row in before for row in rows(run, after))
            cells.append((name, begun, ranks, f"{equal} of {len(after)}", f"{apart:.1e}", twice))
    return cells


def job(spec: RunSpec, run: RunDir, membership: Membership, **more: Any) -> Job:
    """The product's job with another feed."""
    return recorded(job_for(spec, run, membership, **more), lambda rank, size: TitanFiles(spec, run, rank, size))


if __name__ == "__main__":
    sys.exit(main(*arguments_of("experiments.titan_files"), job=job))
