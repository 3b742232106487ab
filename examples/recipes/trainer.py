"""Hugging Face Trainer: the pipeline as its dataset, the loader's state saved by a callback beside each checkpoint.

Two things to know. Trainer would skip data on resume by reading it again: ``ignore_data_skip=True``, since our state
does that in constant time. And it would deal batches of an iterable dataset to ranks itself: ``dispatch_batches`` and
``split_batches`` stay off, and the pipeline is built for this rank.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from examples.recipes.common import model, pipeline, show
from zephon import Pipeline

STATE = "loader.pt"


class SaveLoader(TrainerCallback):
    """Writes this rank's loader state into each checkpoint's folder."""

    def __init__(self, loader: Pipeline) -> None:
        self.loader = loader

    def on_save(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:
        folder = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        torch.save(self.loader.state_dict(), folder / f"{args.process_index}-{STATE}")


class PipelineTrainer(Trainer):
    """Uses the pipeline as it is: it delivers whole batches, this rank's only."""

    def get_train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(self.train_dataset, batch_size=None, num_workers=0)


def train(steps: int, folder: Path, *, resume: bool = False) -> list[float]:
    """Trains until ``steps`` batches are done; returns the losses of these."""
    args = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        save_steps=steps,
        logging_steps=1,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        report_to="none",
        use_cpu=True,
        ignore_data_skip=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
    )
    loader = pipeline()
    last = max(folder.glob("checkpoint-*"), key=lambda p: int(p.name.split("-")[1]), default=None) if resume else None
    if last is not None:
        loader.load_state_dict(torch.load(last / f"{args.process_index}-{STATE}", weights_only=True))
    data = loader.to_torch_dataset(to_training={"return_labels": True})
    trainer = PipelineTrainer(model=model(), args=args, train_dataset=data, callbacks=[SaveLoader(loader)])
    before = 0 if last is None else int(last.name.split("-")[1])
    trainer.train(resume_from_checkpoint=str(last) if last else None)
    loader.close()
    return [line["loss"] for line in trainer.state.log_history if "loss" in line and line["step"] > before]


if __name__ == "__main__":
    show(train, resume=True)
