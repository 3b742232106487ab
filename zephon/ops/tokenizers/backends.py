"""Back ends, fastest first: fastokens, tokenizers (the reference), bytes.

All are to give the ids of the ``tokenizers`` library with special tokens' spellings taken as ordinary text; where the fast one
does not, `zephon.ops.tokenizers.proof` keeps it out.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np

from zephon.errors import ConfigError, nearest
from zephon.ops.tokenizers.ordinary import ordinary
from zephon.types import Array, Json, Ragged

PREFERENCE = ("fastokens", "tokenizers")
Made = TypeVar("Made")


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


class Unencodable(ValueError):
    """A text that the definition has no ids for, such as a letter outside its vocabulary where it names no unknown token.

    Args:
        index: which of the texts.
    """

    def __init__(self, index: int, why: str) -> None:
        super().__init__(f"the tokenizer has no ids for it: {why}")
        self.index = index


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


class _Added(Protocol):
    @property
    def content(self) -> str: ...


class _Numbered(Protocol):
    """What of the same library's tokenizer tells ids by name."""

    def get_added_tokens_decoder(self) -> Mapping[int, _Added]: ...

    def get_vocab_size(self) -> int: ...

    def token_to_id(self, token: str) -> int | None: ...


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

        self._tokenizer: _FlatEncoder = fastokens.Tokenizer.from_json_str(ordinary(definition))
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
        ids, offsets = _each_or_all(lambda some: self._tokenizer.encode_batch_flat(some, special, True), texts)
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

        without = ordinary(definition)
        tokenizer = tokenizers.Tokenizer.from_str(without)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True  # their spellings are ordinary text
        self._tokenizer: _BatchEncoder = tokenizer
        # Without a special token's name in the model's vocabulary the library would number later added tokens otherwise.
        self._renumbered: Array | None = None
        if without is not definition:
            self._renumbered = _renumbered(tokenizer, tokenizers.Tokenizer.from_str(definition))

    def encode(self, texts: list[str]) -> Ragged:
        encoded = _each_or_all(lambda some: self._tokenizer.encode_batch_fast(some, add_special_tokens=False), texts)
        ids = Ragged.of([np.array(row.ids, np.uint32) for row in encoded])
        return ids if self._renumbered is None else Ragged(self._renumbered[ids.values], ids.offsets)

    def encode_between(self, texts: list[str], before: int | None, after: int | None) -> Ragged | None:
        return None


def _each_or_all(encode: Callable[[list[str]], Made], texts: list[str]) -> Made:
    """What a library gives for all texts. Raises Unencodable for the first that it refuses."""
    try:
        return encode(texts)
    except (TypeError, AttributeError, UnicodeError):  # no text at all
        raise
    except Exception as error:
        for index, text in enumerate(texts):
            try:
                encode([text])
            except Exception as cause:  # noqa: BLE001 - the libraries raise nothing more special
                raise Unencodable(index, str(cause)) from error
        raise


def _renumbered(now: _Numbered, right: _Numbered) -> Array | None:
    """Right id by id of now, where an added token has another one."""
    wrong: dict[int, int] = {}
    for token, added in now.get_added_tokens_decoder().items():
        other = right.token_to_id(added.content)
        if other is not None and other != token:
            wrong[token] = other
    if not wrong:
        return None
    table = np.arange(max(now.get_vocab_size(), *wrong) + 1, dtype=np.uint32)
    table[list(wrong)] = list(wrong.values())
    return table


def make_backend(name: str, definition: str) -> Backend:
    """The back end of this name, whether it is exact or not: `zephon.ops.tokenizers.proof` knows that."""
    if name == "bytes":
        return Bytes()
    if name == "fastokens":
        return Fastokens(definition)
    if name == "tokenizers":
        return HuggingFace(definition)
    raise ConfigError(f"tokenizer back end {name!r} is not known", remedy=nearest(name, ("auto", *PREFERENCE)))
