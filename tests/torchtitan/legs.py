"""TorchTitan's own trainer in one process that imports it once and forks the ranks of each leg."""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import shutil
import socket
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.torchtitan import shims

shims.install()

import torch  # noqa: E402
from torchtitan.components.loss import CrossEntropyLoss  # noqa: E402
from torchtitan.components.metrics import MetricsProcessor  # noqa: E402
from torchtitan.models.common.config_utils import decoder_vocab_size  # noqa: E402
from torchtitan.models.llama3 import config_registry, model_registry  # noqa: E402

from zephon.integrations.torchtitan import with_zephon  # noqa: E402

SEQ, SIZE, LANES = 64, 8, 4


def config(folder: Path, *, steps: int, loader: dict[str, Any] | None = None, **changed: Any) -> Any:
    """A llama of two layers; ``changed`` as TorchTitan spells it, with __ for the dot."""
    made = config_registry.llama3_debugmodel()
    made.model_spec = model_registry("debugmodel")
    del made.model_spec.model.layers[2:]
    made.loss = CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(made.model_spec))
    made.hf_assets_path = str(folder / "assets")
    made.dump_folder = str(folder / "out")
    made.training.disable_cuda_graphs = True
    made.training.seq_len, made.training.global_batch_size, made.training.local_batch_size = SEQ, SIZE, 2
    made.training.steps = steps
    made.training.mixed_precision_param = "float32"
    made.lr_scheduler.total_steps = 1000
    made.checkpoint.enable, made.checkpoint.interval, made.checkpoint.folder = True, 1000, "checkpoint"
    made.debug.seed = 1
    if loader is not None:
        made = with_zephon(made, **{"recipe": "tests.torchtitan.recipe:train", "lanes": LANES, **loader})
    for key, value in changed.items():
        part, *rest = key.split("__")
        owner = made
        for name in rest:
            owner, part = getattr(owner, part), name
        setattr(owner, part, value)
    return made


Leg = Callable[[], Any]


def run(ranks: int, make: Leg, log: Path) -> list[dict[str, Any]]:
    """What each rank reports.

    {"losses", "validation", "tokens": {step: number}, "rows": [a digest of each row's inputs, in order], "error": str}
    """
    context = multiprocessing.get_context("fork")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    files = [log.with_suffix(f".{rank}.json") for rank in range(ranks)]
    children = [context.Process(target=_rank, args=(rank, ranks, port, make, files[rank])) for rank in range(ranks)]
    for child in children:
        child.start()
    for child in children:
        child.join(300)
        if child.is_alive():
            child.kill()
    return [json.loads(file.read_text()) if file.exists() else {"error": "killed", "losses": {}} for file in files]


def leg(folder: Path, name: str, ranks: int, steps: int, loader: dict[str, Any] | None = None, **changed: Any) -> list[dict]:
    """Starts with the same weights, which otherwise follow from how the model is sharded."""
    return _leg(folder, name, ranks, steps, lambda out: config(folder, steps=steps, loader=loader or {}, **out, **changed))


def stock(folder: Path, name: str, ranks: int, steps: int, **changed: Any) -> list[dict]:
    """The same with TorchTitan's own loader and trainer, on the dataset prose."""
    from torchtitan.hf_datasets.text_datasets import DATASETS, DatasetConfig, HuggingFaceTextDataLoader

    def rows(path: str) -> Any:
        from datasets import load_dataset

        return load_dataset("json", data_files=str(folder / "prose" / "a.jsonl"), split="train", streaming=True)

    def make(out: dict[str, str]) -> Any:
        made = config(folder, steps=steps, **out, **changed)
        made.dataloader = HuggingFaceTextDataLoader.Config(dataset="test")
        made.checkpoint.last_save_model_only = False
        return made

    DATASETS["test"] = DatasetConfig(path="", loader=rows, sample_processor=lambda sample: sample["text"])
    return _leg(folder, name, ranks, steps, make)


def _leg(folder: Path, name: str, ranks: int, steps: int, make: Callable[[dict[str, str]], Any]) -> list[dict]:
    out = folder / name
    if not out.exists() and name != "seed":
        shutil.copytree(folder / "seed" / "checkpoint", out / "checkpoint")
    return run(ranks, lambda: make({"dump_folder": str(out)}), folder / f"{name}-{ranks}-{steps}")


def batches(reports: list[dict[str, Any]]) -> list[list[str]]:
    """The rows of each global batch, rank by rank."""
    share = SIZE // len(reports)
    steps = range(0, len(reports[0]["rows"]), share)
    return [[row for said in reports for row in said["rows"][first : first + share]] for first in steps]


def apart(losses: dict[str, float], others: dict[str, float]) -> float:
    return max(abs(loss - others[step]) for step, loss in losses.items())


def _rank(rank: int, ranks: int, port: int, make: Leg, report: Path) -> None:
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # TorchTitan's own
    said: dict[str, Any] = {"losses": {}, "tokens": {}, "validation": {}, "rows": [], "error": ""}
    log = MetricsProcessor.log
    validated = MetricsProcessor.log_validation

    def told(self: Any, step: int, loss: float, *rest: Any, **more: Any) -> None:
        said["losses"][step] = loss
        said["tokens"][step] = (more.get("extra_metrics") or {}).get("n_tokens_seen")
        log(self, step, loss, *rest, **more)

    def told_validation(self: Any, loss: float, step: int, **more: Any) -> None:
        said["validation"][step] = loss
        validated(self, loss=loss, step=step, **more)

    MetricsProcessor.log, MetricsProcessor.log_validation = told, told_validation
    with open(report.with_suffix(".log"), "w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        trainer = None
        try:
            made = make()
            trainer = made.build()
            if made.checkpoint.create_seed_checkpoint:
                trainer.checkpointer.save(curr_step=0, last_step=True)
            else:
                _record_rows(trainer, said["rows"])
                trainer.train()
        except BaseException as error:  # noqa: BLE001 - the report is the result, also of SystemExit
            said["error"] = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        report.write_text(json.dumps(said))
        if trainer is not None:
            with contextlib.suppress(Exception):
                trainer.close()
        out.flush()
    os._exit(0)


def _record_rows(trainer: Any, rows: list[str]) -> None:
    """Of whichever loader, what the trainer takes from it."""
    generate = trainer.batch_generator

    def generator(loader: Any) -> Any:
        for inputs, labels in generate(loader):
            rows.extend(hashlib.sha256(row.numpy().tobytes()).hexdigest()[:16] for row in inputs["input"])
            yield inputs, labels

    trainer.batch_generator = generator
