"""What the tests train on: a recipe as a user writes it."""

from __future__ import annotations

import os
from typing import Any

from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.ops.tokenizers import Tokenizer

FOLDER = "ZEPHON_TEST_TEXT"


def source(**options: Any) -> StaticMixtureWorkSource:
    datasets = [Dataset.from_path(name, os.path.join(os.environ[FOLDER], name)) for name in ("prose", "code")]
    return StaticMixtureWorkSource(datasets, {"prose": 0.7, "code": 0.3}, chunk_bytes=4096, **options)


def train(tokenizer: Tokenizer, seq_len: int) -> Pipeline:
    text = Pipeline(source(seed=1, exhausted_policy="repeat"))
    return text.tokenize(tokenizer, field="text", special_tokens="eos").pack_flat(context_length=seq_len).shuffle(32)


def more_workers(tokenizer: Tokenizer, seq_len: int) -> Pipeline:
    return train(tokenizer, seq_len).options(runner="threads", max_workers=3)


def other_data(tokenizer: Tokenizer, seq_len: int) -> Pipeline:
    paths = {"prose": "prose", "code": "held"}
    datasets = [Dataset.from_path(name, os.path.join(os.environ[FOLDER], path)) for name, path in paths.items()]
    mixed = StaticMixtureWorkSource(datasets, {"prose": 0.7, "code": 0.3}, chunk_bytes=4096, seed=1, exhausted_policy="repeat")
    text = Pipeline(mixed).tokenize(tokenizer, field="text", special_tokens="eos")
    return text.pack_flat(context_length=seq_len).shuffle(32)


def another_seed(tokenizer: Tokenizer, seq_len: int) -> Pipeline:
    text = Pipeline(source(seed=2, exhausted_policy="repeat"))
    return text.tokenize(tokenizer, field="text", special_tokens="eos").pack_flat(context_length=seq_len).shuffle(32)


def another_mixture(tokenizer: Tokenizer, seq_len: int) -> Pipeline:
    datasets = list(source().datasets)
    mixed = StaticMixtureWorkSource(datasets, {"prose": 0.5, "code": 0.5}, chunk_bytes=4096, seed=1, exhausted_policy="repeat")
    text = Pipeline(mixed).tokenize(tokenizer, field="text", special_tokens="eos")
    return text.pack_flat(context_length=seq_len).shuffle(32)


def another_shuffle(tokenizer: Tokenizer, seq_len: int) -> Pipeline:
    text = Pipeline(source(seed=1, exhausted_policy="repeat"))
    return text.tokenize(tokenizer, field="text", special_tokens="eos").pack_flat(context_length=seq_len).shuffle(64)


def held_out(tokenizer: Tokenizer, seq_len: int) -> Pipeline:
    dataset = Dataset.from_path("held", os.path.join(os.environ[FOLDER], "held"))
    text = Pipeline(StaticMixtureWorkSource([dataset], chunk_bytes=512, shuffle_shards=False, stop_after_passes=1))
    return text.tokenize(tokenizer, field="text", special_tokens="eos").pack_flat(context_length=seq_len)
