"""What a run will take, counted from its spec: tokens, weights, memory, checkpoints."""

from __future__ import annotations

import dataclasses
import math

from zephon.spec.experiment import RunSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a run will take, from the spec alone.

    Args:
        parameters: weights of the decoder; None when the vocabulary size is only known to the tokenizer.
        state_bytes: weights, gradients and AdamW moments on one replica, float32.
        checkpoint_bytes: weights and moments.
    """

    parameters: int | None
    state_bytes: int | None
    checkpoint_bytes: int | None
    tokens: int


_VOCABULARY = {"gpt2": 50257, "bytes": 258}


def estimate(spec: RunSpec, *, ids: int | None = None) -> Estimate:
    """Counts tokens, weights and bytes; the weights are those of the built-in decoder.

    Args:
        ids: how many ids the tokenizer has, where it is loaded.
    """
    tokens = spec.trainer.steps * spec.global_batch_size * spec.pipeline.context_length
    model = spec.model
    vocabulary = model.vocab_size or ids or _VOCABULARY.get(spec.tokenizer.id)
    if vocabulary is None:
        return Estimate(parameters=None, state_bytes=None, checkpoint_bytes=None, tokens=tokens)
    head = model.dim // model.heads
    kv = (model.kv_heads or model.heads) * head
    hidden = model.hidden_dim or 32 * math.ceil(model.dim * 8 / 3 / 32)
    block = model.dim * (2 * model.dim + 2 * kv) + 3 * model.dim * hidden + 2 * model.dim
    parameters = vocabulary * model.dim * (1 if model.tie_embeddings else 2) + model.layers * block + model.dim
    return Estimate(parameters=parameters, state_bytes=16 * parameters, checkpoint_bytes=12 * parameters, tokens=tokens)


def checkpoints_kept(spec: RunSpec) -> int:
    """How many checkpoints a run has at once, but for the one that is being written."""
    return min(spec.trainer.steps // spec.checkpoint.every + 1, spec.checkpoint.keep_last)
