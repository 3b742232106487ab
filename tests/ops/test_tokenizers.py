"""Tokenizers: known ids, one identity whatever the back end, parity with the reference, special spellings as text."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zephon import Dataset, InMemoryShard, Pipeline, StaticMixtureWorkSource
from zephon.errors import ConfigError
from zephon.ops.tokenizers import check_parity, load_tokenizer
from zephon.types import Ragged

BACKENDS = ("fastokens", "tokenizers")
# It has no build for free-threaded Python, where `make check-free-threaded` runs these tests.
needs_fastokens = pytest.mark.skipif(importlib.util.find_spec("fastokens") is None, reason="no fastokens for this interpreter")
EITHER = [pytest.param("fastokens", marks=needs_fastokens), "tokenizers"]
TEXTS = [
    "Hello world",
    "",
    " \n\n\t  x",
    "def f(a):\n    return a  # \u00e4\u00f6 \u65e5\u672c \U0001f600",
    "<|endoftext|> 's 'S isn't",
    "1234567 " * 40,
]


@pytest.mark.parametrize("backend", EITHER)
def test_gpt2_gives_its_known_ids(backend: str) -> None:
    tokenizer = load_tokenizer("gpt2", backend=backend)
    assert tokenizer.encode(["Hello world"]).values.tolist() == [15496, 995]
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_id) == (50257, 50256, 50256)


@needs_fastokens
def test_back_ends_agree_and_share_one_identity() -> None:
    fast, slow = (load_tokenizer("gpt2", backend=backend) for backend in BACKENDS)
    assert fast.identity == slow.identity
    one, other = fast.encode(TEXTS), slow.encode(TEXTS)
    assert one.values.tolist() == other.values.tolist()
    assert one.offsets.tolist() == other.offsets.tolist()
    assert one.values.dtype == other.values.dtype == np.uint32


@needs_fastokens
@pytest.mark.parametrize("special", ["bos_eos", "bos", "eos", "none"])
@pytest.mark.parametrize("more", [{}, {"max_length": 9, "truncation": True}, {"max_length": 7, "split_long_samples": True}])
def test_special_tokens_go_in_alike_whoever_puts_them_there(special: str, more: dict[str, Any]) -> None:
    def run(backend: str) -> list[list[int]]:
        dataset = Dataset.from_dict("d", {"s": InMemoryShard([{"text": text} for text in TEXTS])})
        pipeline = Pipeline(StaticMixtureWorkSource([dataset], shuffle_shards=False)).options(runner="inline")
        pipeline.tokenize(load_tokenizer("gpt2", backend=backend), field="text", special_tokens=special, bos_token_id=5, **more)
        return [batch.payload["input_ids"][0].tolist() for batch in pipeline.batch(1)]

    assert run("fastokens") == run("tokenizers")


@pytest.mark.parametrize("backend", EITHER)
def test_the_spelling_of_a_special_token_is_ordinary_text(backend: str) -> None:
    ids = load_tokenizer("gpt2", backend=backend).encode(["<|endoftext|>"]).values.tolist()
    assert 50256 not in ids
    assert len(ids) == 7


def test_bytes_are_bytes() -> None:
    tokenizer = load_tokenizer("bytes")
    encoded = tokenizer.encode(["a\u00e4", "", "b"])
    assert [encoded[i].tolist() for i in range(3)] == [[97, 195, 164], [], [98]]
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_id) == (258, 256, 257)


def test_a_definition_on_disk_is_found_by_file_or_directory_and_its_special_tokens_by_name(tmp_path: Path) -> None:
    definition = json.loads(load_tokenizer("gpt2").definition)
    definition["added_tokens"].append({**definition["added_tokens"][0], "id": 50257, "content": "<s>"})
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    plain = load_tokenizer(str(tmp_path))
    assert plain.identity == load_tokenizer(str(tmp_path / "tokenizer.json")).identity != load_tokenizer("gpt2").identity
    assert (plain.bos_id, plain.eos_id, plain.vocab_size) == (50257, 50256, 50258)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<s>"}, "chat_template": "{{ x }}"}))
    configured = load_tokenizer(str(tmp_path))
    assert (configured.eos_id, configured.chat_template) == (50257, "{{ x }}")


def test_truncation_and_padding_in_the_definition_change_nothing(tmp_path: Path) -> None:
    definition = json.loads(load_tokenizer("gpt2").definition)
    definition["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    tokenizer = load_tokenizer(str(tmp_path), backend="tokenizers")
    assert len(tokenizer.encode(["one two three four"]).values) == 4
    assert tokenizer.identity == load_tokenizer("gpt2").identity


@pytest.mark.parametrize(("name", "text"), [("nowhere", None), ("broken", "{"), ("other", '{"a": 1}')])
def test_what_is_no_tokenizer_is_refused(name: str, text: str | None, tmp_path: Path) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=r"neither built in|not a tokenizer definition"):
        load_tokenizer(str(path))


def test_an_unknown_back_end_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'fastokens'"):
        load_tokenizer("gpt2", backend="fasttokens").encode(["a"])


def test_a_tokenizer_travels_as_its_definition() -> None:
    tokenizer = load_tokenizer("gpt2")
    tokenizer.encode(["a"])
    again = pickle.loads(pickle.dumps(tokenizer))
    assert "backend" not in vars(again)
    assert again.encode(["Hello world"]).values.tolist() == [15496, 995]


class _OffByOne:
    name = "wrong"

    def encode(self, texts: list[str]) -> Ragged:
        right = load_tokenizer("gpt2").encode(texts)
        return Ragged(np.where(right.values == 995, 996, right.values).astype(np.uint32), right.offsets)


@needs_fastokens
def test_a_back_end_that_differs_on_the_runs_own_text_is_replaced_by_the_reference_and_said_so() -> None:
    good = load_tokenizer("gpt2", backend="fastokens")
    assert check_parity(good, TEXTS) == (good, None)
    bad = dataclasses.replace(good)
    vars(bad)["backend"] = _OffByOne()
    used, why = check_parity(bad, ["nothing here", "Hello world"])
    assert used.backend.name == "tokenizers"
    assert why is not None
    assert "differs from 'tokenizers' at token 1 of the text that begins 'Hello world'" in why
