"""Recipes as a user of TorchTitan writes them, and the loader at a number of replicas, without TorchTitan's trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from zephon import Dataset, InMemoryShard, Pipeline, StaticMixtureWorkSource
from zephon.integrations.torchtitan import ZephonDataLoader
from zephon.ops.tokenizers import Tokenizer

SEQ = 16
TEXTS = [{"text": f"document {i} " * (1 + i % 5)} for i in range(400)]


def source(*, infinite: bool = True, **options: Any) -> StaticMixtureWorkSource:
    ends = {"exhausted_policy": "repeat"} if infinite else {"stop_after_passes": 1}
    dataset = Dataset.from_dict("d", {"s": InMemoryShard(TEXTS)})
    return StaticMixtureWorkSource([dataset], chunk_bytes=256, **ends, **options)


def tokenized(**options: Any) -> Pipeline:
    return Pipeline(source(**options)).tokenize(tokenizer_id="bytes", field="text")


def packed(seq_len: int, infinite: bool = True) -> Pipeline:
    return Pipeline(source(infinite=infinite)).tokenize(tokenizer_id="bytes", field="text").pack_flat(context_length=seq_len)


def shuffled(seq_len: int, infinite: bool) -> Pipeline:
    return packed(seq_len, infinite).shuffle(8)


def with_their_tokenizer(tokenizer: Tokenizer | None, seq_len: int) -> Pipeline:
    return Pipeline(source()).tokenize(tokenizer, field="text").pack_flat(context_length=seq_len)


def with_lanes(seq_len: int) -> Pipeline:
    return packed(seq_len).options(lanes=4)


def another_seed(seq_len: int) -> Pipeline:
    return Pipeline(source(seed=7)).tokenize(tokenizer_id="bytes", field="text").pack_flat(context_length=seq_len).shuffle(8)


def with_batch(seq_len: int) -> Pipeline:
    return packed(seq_len).batch(2)


def nothing_to_predict(seq_len: int) -> Pipeline:
    dataset = Dataset.from_dict("d", {"s": InMemoryShard([{"text": "a"}])})
    letter = Pipeline(StaticMixtureWorkSource([dataset], chunk_bytes=256, stop_after_passes=1))
    return letter.tokenize(tokenizer_id="bytes", field="text", special_tokens="none").pack_flat(context_length=seq_len)


def no_pipeline() -> str:
    return "text"


def build(
    replicas: int = 1, rank: int = 0, *, recipe: str = "shuffled", local: int = 2, seq_len: int = SEQ, **config: Any
) -> Any:
    """One rank's loader, built as TorchTitan builds it."""
    fields = {"recipe": f"{__name__}:{recipe}" if recipe.isidentifier() else recipe, "lanes": 8, "global_batch_size": 16}
    return ZephonDataLoader.Config(**{**fields, **config}).build(
        dp_world_size=replicas,
        dp_rank=rank,
        tokenizer=None,
        seq_len=seq_len,
        local_batch_size=local,
        snapshot_every_n_steps=5,
    )


Row = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def rows(batches: Sequence[tuple[dict[str, torch.Tensor], torch.Tensor]]) -> list[Row]:
    """(inputs, positions, labels) of each row that has a label."""
    return [
        (tuple(ids), tuple(positions), tuple(following))
        for inputs, labels in batches
        for ids, positions, following in zip(
            inputs["input"].tolist(), inputs["positions"].tolist(), labels.tolist(), strict=True
        )
        if any(label != ZephonDataLoader.LABEL for label in following)
    ]


def global_batches(loaders: Sequence[Any], steps: int, *, local: int = 2, size: int = 16) -> list[list[Row]]:
    """The rows of each step in slot order, taken as TorchTitan takes them: gradient accumulation steps of each rank."""
    forwards = size // len(loaders) // local
    iterators = [iter(loader) for loader in loaders]
    return [rows([next(one) for one in iterators for _ in range(forwards)]) for _ in range(steps)]
