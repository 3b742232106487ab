"""A definition in which no text can spell a special token.

The ``tokenizers`` library can be told to take special added tokens as ordinary text. Its model can still give their ids: a
Unigram model finds ``</s>`` among its pieces, a WordPiece or WordLevel model among its words, a BPE model by merges. So each
special token that the model could reach gets another name in the model, under the same id; no text holds that name.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator

from zephon.fastjson import loads
from zephon.types import Json

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


def ordinary(definition: str) -> str:
    """The definition to encode documents with: same ids, no special token from text, no dropout."""
    loaded: Json = loads(definition.encode())
    model = loaded["model"]
    changed = bool(model.get("dropout"))
    if changed:
        model["dropout"] = None  # it draws other ids each time
    # Drawn, so that nobody can write the name into a document; no id depends on it.
    hidden = {name: f"{os.urandom(16).hex()} {name}" for name in _reachable(model, set(_special(loaded)))}
    if not hidden:
        return json.dumps(loaded, ensure_ascii=False) if changed else definition
    _rename(model, hidden)
    return json.dumps(loaded, ensure_ascii=False)


def _special(loaded: Json) -> Iterator[str]:
    """Spellings of all special tokens: those so called, and those that the post-processor puts in."""
    added = loaded.get("added_tokens") or []
    plain = {token["content"] for token in added if not token.get("special")}
    yield from (token["content"] for token in added if token.get("special"))
    waiting = [loaded.get("post_processor") or {}]
    while waiting:
        processor = waiting.pop()
        waiting.extend(processor.get("processors", ()))
        known = processor.get("special_tokens") or {}
        names = [name for entry in known.values() for name in entry["tokens"]] if isinstance(known, dict) else []
        names += [processor[key][0] for key in ("sep", "cls") if isinstance(processor.get(key), list)]
        yield from (name for name in names if name not in plain)


def _reachable(model: Json, special: set[str]) -> set[str]:
    """The special tokens that the model itself could give for a text."""
    vocab = model["vocab"]
    if isinstance(vocab, list):
        special &= {piece for piece, _ in vocab}
    else:
        special &= vocab.keys()
    if model.get("byte_fallback"):
        special = {name for name in special if not _BYTE.fullmatch(name)}
    if model.get("type", "BPE") != "BPE" or model.get("ignore_merges"):
        return special
    prefix = model.get("continuing_subword_prefix") or ""
    # A definition has tens of thousands of merges and a few special tokens: those are taken apart, not these put together.
    merges = {merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]}
    return {name for name in special if len(name) == 1 or not merges.isdisjoint(_halves(name, prefix))}


def _halves(name: str, prefix: str) -> Iterator[str]:
    """All merges that would give this name, as ``"left right"``. With spaces in it also others, which does no harm."""
    for i in range(1, len(name)):
        yield f"{name[:i]} {name[i:]}"
        yield f"{name[:i]} {prefix}{name[i:]}"


def _pair(merge: str | list[str]) -> tuple[str, str]:
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left, right


def _rename(model: Json, hidden: dict[str, str]) -> None:
    vocab = model["vocab"]
    if isinstance(vocab, list):
        model["vocab"] = [[hidden.get(piece, piece), score] for piece, score in vocab]
        return
    model["vocab"] = {hidden.get(name, name): token for name, token in vocab.items()}
    if model.get("unk_token") in hidden:
        model["unk_token"] = hidden[model["unk_token"]]
    if "merges" in model:
        prefix = model.get("continuing_subword_prefix") or ""
        pairs = [_pair(merge) for merge in model["merges"]]
        model["merges"] = [
            [left, right] for left, right in pairs if not hidden.keys() & {left, right, left + right.removeprefix(prefix)}
        ]
