"""Back ends, fastest first: fastokens, tokenizers (the reference), bytes.

All of them give the ids of the ``tokenizers`` library with special tokens' spellings taken as ordinary text.
"""

from __future__ import annotations

import importlib.util
import json
import os
import threading
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from zephon.errors import ConfigError, nearest
from zephon.types import Json, Ragged

PREFERENCE = ("fastokens", "tokenizers")


class Backend(Protocol):
    """Turns texts into token ids. Safe to call from several threads."""

    @property
    def name(self) -> str: ...

    def encode(self, texts: list[str]) -> Ragged:
        """uint32 token ids, one row a text, without special tokens."""
        ...

    def encode_between(self, texts: list[str], before: int | None, after: int | None) -> Ragged | None:
        """The same with these ids around each text; None where the back end cannot add them itself."""
        ...


class _FlatEncoder(Protocol):
    """The part of a fastokens tokenizer that is used here; the library declares no types."""

    post_processor: object

    def encode_batch_flat(self, texts: list[str], special: bool, parallel: bool, /) -> tuple[bytes, bytes]: ...


class _Encoded(Protocol):
    @property
    def ids(self) -> list[int]: ...


class _BatchEncoder(Protocol):
    """The part of a ``tokenizers`` tokenizer that is used here; the library declares no types."""

    def encode_batch_fast(self, texts: list[str], *, add_special_tokens: bool) -> Sequence[_Encoded]: ...


class Bytes:
    """UTF-8 bytes as ids 0 to 255."""

    name = "bytes"

    def encode(self, texts: list[str]) -> Ragged:
        rows = [text.encode("utf-8", "surrogatepass") for text in texts]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        return Ragged(np.frombuffer(b"".join(rows), np.uint8).astype(np.uint32), offsets)

    def encode_between(self, texts: list[str], before: int | None, after: int | None) -> Ragged | None:
        return None


class Fastokens:
    """fastokens: releases the GIL and returns flat buffers."""

    name = "fastokens"

    def __init__(self, definition: str) -> None:
        # One thread a call: our own workers are the parallelism. The variable is read when the library first encodes.
        os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")
        import fastokens

        self._tokenizer: _FlatEncoder = fastokens.Tokenizer.from_json_str(definition)
        self._setting = threading.Lock()
        self._between: tuple[int | None, int | None] | None = None

    def encode(self, texts: list[str]) -> Ragged:
        return self._encode(texts, False)

    def encode_between(self, texts: list[str], before: int | None, after: int | None) -> Ragged | None:
        """With special tokens put in by the library, which saves a copy of all ids.

        Its post-processor holds one setting; the first pair that is asked for gets it, any other pair gets None.
        """
        with self._setting:
            if self._between is None:
                self._between = (before, after)
                self._tokenizer.post_processor = _post_processor(before, after)
        return self._encode(texts, True) if self._between == (before, after) else None

    def _encode(self, texts: list[str], special: bool) -> Ragged:
        ids, offsets = self._tokenizer.encode_batch_flat(texts, special, True)
        return Ragged(np.frombuffer(ids, np.uint32), np.frombuffer(offsets, np.uint64).view(np.int64))


def _post_processor(before: int | None, after: int | None) -> object:
    """A library object that puts these ids around each text; taken from a tokenizer of one word that is defined with it."""
    import fastokens

    ids = {"before": before, "after": after}
    special = {name: {"id": name, "ids": [token], "tokens": [name]} for name, token in ids.items() if token is not None}
    single: list[Json] = [{"Sequence": {"id": "A", "type_id": 0}}]
    if before is not None:
        single.insert(0, {"SpecialToken": {"id": "before", "type_id": 0}})
    if after is not None:
        single.append({"SpecialToken": {"id": "after", "type_id": 0}})
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
    definition = {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
        "post_processor": {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special},
    }
    processor: object = fastokens.Tokenizer.from_json_str(json.dumps(definition)).post_processor
    return processor


class HuggingFace:
    """The ``tokenizers`` library: the reference for all others, and the slowest."""

    name = "tokenizers"

    def __init__(self, definition: str) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        import tokenizers

        self._tokenizer: _BatchEncoder = tokenizers.Tokenizer.from_str(without_added_tokens(definition))

    def encode(self, texts: list[str]) -> Ragged:
        encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return Ragged.of([np.array(row.ids, np.uint32) for row in encoded])

    def encode_between(self, texts: list[str], before: int | None, after: int | None) -> Ragged | None:
        return None


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
        name = next(library for library in PREFERENCE if importlib.util.find_spec(library))
    if name == "fastokens":
        return Fastokens(definition)
    if name == "tokenizers":
        return HuggingFace(definition)
    raise ConfigError(f"tokenizer back end {name!r} is not known", remedy=nearest(name, ("auto", *PREFERENCE)))
