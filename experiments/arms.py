"""What the experiments share: the text, the arms, and a run of an arm on a number of ranks.

    this loader       the same global batch on every number of ranks
    own files         each rank reads its own files: ``files[rank::ranks]``, as `split_dataset_by_node` and torchdata's users do
    TorchTitan's      its text loader, where torchtitan is installed

The arms differ in the worker that our agent starts, and in nothing else: same text, tokenizer, packing, model and trainer.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.corpus import texts
from experiments import recording
from zephon.launch import start as launcher
from zephon.launch.status import status_of
from zephon.run import ledger, metrics
from zephon.run.checkpoints import newest_checkpoint, remove, steps_on_disk
from zephon.run.directory import RunDir
from zephon.spec.experiment import RunSpec

FILES = 8  # of each dataset: every number of ranks up to it can have its own
HELD_OUT = 50  # documents of each
ROOT = Path(__file__).resolve().parent.parent


@dataclasses.dataclass(frozen=True)
class Arm:
    """Args:
    name: in tables.
    worker: the module that each rank runs: the product's own worker, with the feed of this arm.
    reduction: see ``trainer.reduction``.
    """

    name: str
    worker: str
    reduction: str = "default"


OURS = Arm("this loader", worker="experiments.recording")
CANONICAL = Arm("this loader, canonical", worker="experiments.recording", reduction="canonical")
CONTROL = Arm("own files", worker="experiments.own_files")
TITAN = Arm("TorchTitan's", worker="experiments.titan_files")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """How large an experiment is.

    Args:
        sizes: numbers of ranks.
        steps: optimizer steps of a run.
        seeds: of the order of the data; initial weights are the same for all.
        megabytes: text to train on.
        vocabulary: ids of the tokenizer, which is trained on this text.
        length: tokens of a row.
        batch: rows of a step.
        device, precision: of the trainer.
    """

    sizes: tuple[int, ...] = (1, 2, 4, 8)
    steps: int = 60
    seeds: tuple[int, ...] = (1, 2, 3)
    megabytes: float = 3.0
    vocabulary: int = 1024
    length: int = 64
    batch: int = 16
    lanes: int = 8
    dim: int = 48
    layers: int = 2
    heads: int = 4
    lr: float = 2e-3
    warm_up: int = 20
    device: str = "cpu"
    precision: str = "float32"


TINY = Setting(sizes=(1, 2), steps=8, seeds=(1,), megabytes=0.2, vocabulary=400, length=32, batch=8, lanes=4, dim=16, layers=1)


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Text on this disk: ``docs`` and ``code`` in eight files each, of each a file that is held out, and a tokenizer."""

    folder: Path

    @property
    def tokenizer(self) -> str:
        return str(self.folder / "tokenizer")

    @property
    def held_out(self) -> Path:
        """The folder of docs.jsonl and code.jsonl."""
        return self.folder / "held_out"


def corpus(folder: Path, setting: Setting) -> Corpus:
    """Documentation and source code of this Python, which every reader has; a tenth of each is held out."""
    made = Corpus(folder)
    if (folder / "complete").exists():
        return made
    docs, code = list(texts("docs")), list(texts("code"))
    wanted = int(setting.megabytes * 1e6)
    examples = []
    for name, documents in {"docs": docs, "code": code}.items():
        _write(made.held_out, itertools.islice(documents[::10], HELD_OUT), 1, f"{name}.jsonl")
        training = [text for number, text in enumerate(documents) if number % 10]
        _write(folder / name, _first(training, wanted // 2), FILES)
        examples += training[:300]
    _train_tokenizer(folder / "tokenizer", examples, setting.vocabulary)
    (folder / "complete").touch()
    return made


def _first(documents: Sequence[str], size: int) -> Iterator[str]:
    taken = 0
    for text in itertools.cycle(documents):
        if taken >= size:
            return
        taken += len(text.encode())
        yield text


def _write(folder: Path, documents: Iterator[str], files: int, name: str = "part-{}.jsonl") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"text": text}) + "\n" for text in documents]
    for number in range(files):
        (folder / name.format(number)).write_text("".join(lines[number::files]))


def _train_tokenizer(folder: Path, documents: list[str], size: int) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special, alphabet = ["<s>", "</s>"], pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(documents, trainer)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))


def spec_of(
    text: Corpus, setting: Setting, arm: Arm, runs: Path, *, name: str, seed: int = 1, weights: dict[str, float] | None = None
) -> RunSpec:
    """The experiment of one run, for any number of ranks.

    Args:
        weights: of the datasets; None is half of each.
    """
    datasets = {
        key: {"path": str(text.folder / key), "weight": w} for key, w in (weights or {"docs": 0.5, "code": 0.5}).items()
    }
    fields: dict[str, Any] = {
        "name": name,
        "runs": str(runs),
        "global_batch_size": setting.batch,
        "data": {"datasets": datasets, "seed": seed, "chunk_bytes": 4096},
        "tokenizer": {"id": text.tokenizer},
        "pipeline": {"context_length": setting.length, "shuffle_buffer": 64, "shuffle_seed": seed},
        "lanes": {"count": setting.lanes},
        "loader": {"workers": 1},
        "model": {"dim": setting.dim, "layers": setting.layers, "heads": setting.heads},
        "optimizer": {"lr": setting.lr, "warmup_steps": setting.warm_up},
        "checkpoint": {"every": max(1, setting.steps // 2), "keep_last": 2},
        "trainer": {
            "steps": setting.steps,
            "microbatch_size": setting.batch // setting.lanes if arm.reduction == "canonical" else setting.batch,
            "reduction": arm.reduction,
            "device": setting.device,
            "precision": setting.precision,
            "torch_threads": 1,
            "tensorboard": False,
        },
    }
    return RunSpec.from_dict(fields)


def train(spec: RunSpec, arm: Arm, ranks: int) -> RunDir:
    """Trains an experiment to its end on this many ranks, from its newest checkpoint where it has one.

    A run that is done already stays as it is, so that an interrupted experiment with ``--keep`` goes on where it was.

    Raises:
        RuntimeError: the run failed; with its error.
    """
    run = RunDir(str(Path(spec.runs) / spec.name))
    if newest_checkpoint(run) >= spec.trainer.steps:
        return run
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    sized = dataclasses.replace(spec, elastic=dataclasses.replace(spec.elastic, procs_per_node=ranks))
    began = time.monotonic()
    run = launcher.start(sized, worker=arm.worker).rundir
    while (status := status_of(run)).live or status.state == "UNSUBMITTED":
        time.sleep(0.4)
    if status.state != "DONE":
        raise RuntimeError(f"{run.url} on {ranks} ranks: {status.state} {status.message} {status.error}")
    print(f"{spec.name}: {arm.name} on {ranks} ranks, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return run


def cut(run: RunDir, step: int, to: Path) -> Path:
    """A copy of a run as it was when the checkpoint of this step had been saved; returns its ``runs`` folder."""
    there = to / Path(run.root).name
    if there.exists():
        return to
    shutil.copytree(run.root, there)
    copy = RunDir(str(there))
    for saved in steps_on_disk(copy):
        if saved != step:
            remove(copy, saved)
    for name in (ledger.FILE, metrics.FILE):
        lines = [line for line in (there / name).read_text().splitlines() if json.loads(line)["step"] < step]
        (there / name).write_text("".join(line + "\n" for line in lines))
    for file in there.glob(recording.FILES):
        file.unlink()
    return to


def rows(run: RunDir, steps: range) -> list[str]:
    """Digests of the rows that were trained in these steps."""
    lines = [line.split() for file in Path(run.root).glob(recording.FILES) for line in file.read_text().splitlines()]
    return [digest for step, digest in lines if int(step) in steps]


def digests(run: RunDir) -> dict[int, str]:
    """Of each step's global batch."""
    return {entry.step: entry.digest for entry in ledger.read_ledger(run.path(ledger.FILE))}


def losses(run: RunDir) -> dict[int, float]:
    """Of each step, before its update."""
    return {entry.step: float(entry.rest["loss"]) for entry in ledger.read_ledger(run.path(ledger.FILE))}


def main_of(run: Callable[[Path, Setting, Path], bool], doc: str, full: Setting, usual: Setting) -> None:
    """The command line that all experiments have."""
    import argparse
    import tempfile

    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("experiments-out"), help="where the table and the picture go")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where the runs go; by default they are removed")
    parser.add_argument("--steps", type=int, help="optimizer steps of a run")
    parser.add_argument("--seeds", type=int, help="how many data seeds")
    parser.add_argument("--tiny", action="store_true", help="seconds: to see that it works, not to conclude anything")
    parser.add_argument("--full", action="store_true", help="for GPUs")
    chosen = parser.parse_args()
    setting = TINY if chosen.tiny else full if chosen.full else usual
    if chosen.steps:
        setting = dataclasses.replace(setting, steps=chosen.steps)
    if chosen.seeds:
        setting = dataclasses.replace(setting, seeds=tuple(range(1, chosen.seeds + 1)))
    chosen.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="zephon-experiment-") as scratch:
        folder = chosen.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        sys.exit(0 if run(folder, setting, chosen.out) else 1)
