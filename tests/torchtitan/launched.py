"""A config registry as a user's own: what ``torchtitan.module`` names in an experiment."""

from __future__ import annotations

from typing import Any


def small() -> Any:
    from torchtitan.components.loss import CrossEntropyLoss
    from torchtitan.models.common.config_utils import decoder_vocab_size
    from torchtitan.models.llama3 import config_registry, model_registry

    from tests.torchtitan import shims

    shims.attention_and_reduction()
    made = config_registry.llama3_debugmodel()
    made.model_spec = model_registry("debugmodel")
    del made.model_spec.model.layers[2:]
    made.loss = CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(made.model_spec))
    made.training.disable_cuda_graphs = True
    made.training.mixed_precision_param = "float32"
    made.lr_scheduler.total_steps = 1000
    made.debug.seed = 1
    return made
