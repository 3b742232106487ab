"""Back ends, fastest first: fastokens, tokenizers (the reference), bytes.

All of them give the ids of the ``tokenizers`` library with special tokens' spellings taken as ordinary text.
"""

from __future__ import annotations

import importlib.util
import json
import os
from typing import Any

import numpy as np

from zephon.errors import ConfigError, nearest
from zephon.ops.tokenizers.base import Backend
from zephon.types import Ragged

PREFERENCE = ("fastokens", "tokenizers")


class Bytes:
    """UTF-8 bytes as ids 0 to 255."""

    name = "bytes"

    def encode(self, texts: list[str]) -> Ragged:
        rows = [text.encode("utf-8", "surrogatepass") for text in texts]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        return Ragged(np.frombuffer(b"".join(rows), np.uint8).astype(np.uint32), offsets)


class Fastokens:
    """fastokens: releases the GIL and returns flat buffers."""

    name = "fastokens"

    def __init__(self, definition: str) -> None:
        # One thread a call: our own workers are the parallelism. The variable is read when the library first encodes.
        os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")
        import fastokens

        self._tokenizer: Any = fastokens.Tokenizer.from_json_str(definition)

    def encode(self, texts: list[str]) -> Ragged:
        ids, offsets = self._tokenizer.encode_batch_flat(texts, False, True)
        return Ragged(np.frombuffer(ids, np.uint32), np.frombuffer(offsets, np.uint64).astype(np.int64))


class HuggingFace:
    """The ``tokenizers`` library: the reference for all others, and the slowest."""

    name = "tokenizers"

    def __init__(self, definition: str) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        import tokenizers

        self._tokenizer: Any = tokenizers.Tokenizer.from_str(without_added_tokens(definition))

    def encode(self, texts: list[str]) -> Ragged:
        encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return Ragged.of([np.array(row.ids, np.uint32) for row in encoded])


def without_added_tokens(definition: str) -> str:
    """The definition without the tokens whose spelling would be recognised inside a text."""
    loaded = json.loads(definition)
    loaded["added_tokens"] = [token for token in loaded.get("added_tokens", []) if not token.get("special")]
    return json.dumps(loaded)


def make_backend(name: str, definition: str) -> Backend:
    """The back end of this name; "auto" is the fastest one installed."""
    if name == "bytes":
        return Bytes()
    if name == "auto":
        name = next(found for found in PREFERENCE if importlib.util.find_spec(found))
    if name == "fastokens":
        return Fastokens(definition)
    if name == "tokenizers":
        return HuggingFace(definition)
    raise ConfigError(
        f"tokenizer back end {name!r} is not known",
        follows="no text could be tokenized",
        remedy=nearest(name, ("auto", *PREFERENCE)),
    )
