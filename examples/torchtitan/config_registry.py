"""TorchTitan's own llama3 debug model with this loader: the stock configuration, and five lines.

    torchrun --nproc-per-node 8 -m torchtitan.train --module examples.torchtitan --config llama3_debugmodel_zephon \\
        --training.global_batch_size 64 --training.local_batch_size 8
"""

from __future__ import annotations

from torchtitan.models.llama3.config_registry import llama3_debugmodel

from zephon.integrations.torchtitan import ZephonDataLoader, ZephonTrainer, with_zephon

DATA = "examples/torchtitan/experiment.yaml"


def llama3_debugmodel_zephon() -> ZephonTrainer.Config:
    """The data of an experiment file; every number of replicas that divides 32 lanes has the same global batches."""
    config = with_zephon(llama3_debugmodel(), recipe=DATA, lanes=32)
    config.checkpoint.enable = True
    config.validator.enable, config.validator.steps = True, -1
    config.validator.dataloader = ZephonDataLoader.Config(recipe=DATA, lanes=32, held_out=True, infinite=False)
    return config
