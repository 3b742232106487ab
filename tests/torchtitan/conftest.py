"""Texts, a tokenizer and first weights for all tests of TorchTitan's trainer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torchtitan import recipe


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Datasets prose, code and held, the assets of two tokenizers, and a checkpoint of the first weights."""
    from tests.torchtitan import legs

    made = tmp_path_factory.mktemp("titan")
    texts = [f"number {i} is {i * i} and its neighbour is {i + 1}. " * (1 + i % 7) for i in range(1500)]
    for name, part in {"prose": texts[:900], "code": [t.upper() for t in texts[600:1400]], "held": texts[1400:]}.items():
        (made / name).mkdir()
        (made / name / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in part))
    for name, size in {"assets": 600, "other_assets": 500}.items():
        tokenizer_of(texts, size, made / name)
    os.environ[recipe.FOLDER] = str(made)
    (said,) = legs.leg(made, "seed", 1, 1, checkpoint__create_seed_checkpoint=True)
    assert said["error"] == ""
    yield made
    del os.environ[recipe.FOLDER]


def tokenizer_of(texts: list[str], size: int, assets: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(texts, trainer)
    assets.mkdir()
    tokenizer.save(str(assets / "tokenizer.json"))
    (assets / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
