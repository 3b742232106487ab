"""``trainer=torchtitan``: one worker of a run that TorchTitan trains, with the run directory, drain and statuses of ours.

    python -m zephon.integrations.torchtitan.worker --run URL --attempt N

The experiment decides data, batches, lengths, steps and checkpoints; everything else is TorchTitan's configuration. A resize
goes through a checkpoint: ``checkpoints/step-00000030/`` holds what TorchTitan saves, and our marker, written last.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading

import torch.distributed as dist

from zephon.integrations.torchtitan.run_records import RunRecords
from zephon.run.directory import RunDir
from zephon.run.generation import check_newest, newest_claim
from zephon.spec.experiment import RunSpec
from zephon.train.rank import Fence
from zephon.train.worker import arguments_of, status_of


def main(run_url: str, attempt: int) -> int:
    """Trains an attempt as the rank that the environment names; returns the exit status."""
    return status_of(_train, run_url, attempt)


def _train(run: RunDir, attempt: int, spec: RunSpec, leaving: threading.Event) -> bool:
    generation = int(os.environ.get("ZEPHON_GENERATION", "0"))
    check_newest((attempt, generation), newest_claim(run))
    fence = Fence(run, attempt, generation)
    from zephon.integrations.torchtitan.run_trainer import RunTrainer, config_of

    with tempfile.TemporaryDirectory(prefix="zephon-") as scratch:
        config = config_of(run, attempt, spec, own_files=run.path() if run.local else scratch)
        records = RunRecords(run, spec, attempt, fence.check) if os.environ.get("RANK", "0") == "0" else None
        trainer = RunTrainer(config, run=run, records=records, leaving=leaving.is_set)
        try:
            trainer.train()
        finally:
            trainer.close()
            if records is not None:
                records.close()
        dist.destroy_process_group()
    return bool(trainer.step >= spec.trainer.steps)


if __name__ == "__main__":
    sys.exit(main(*arguments_of("zephon.integrations.torchtitan.worker")))
