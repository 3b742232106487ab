"""From a name or a path to a `Tokenizer`."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path

from zephon.errors import ConfigError
from zephon.ops.tokenizers.gpt2 import gpt2_definition
from zephon.ops.tokenizers.tokenizer import Tokenizer
from zephon.types import Json

_BOS = ("<|begin_of_text|>", "<s>", "<bos>", "[CLS]", "<|startoftext|>")
_EOS = ("<|end_of_text|>", "</s>", "<eos>", "[SEP]", "<|endoftext|>")


def load_tokenizer(tokenizer_id: str, *, backend: str = "auto") -> Tokenizer:
    """``"gpt2"`` and ``"bytes"`` are built in; anything else is the path of a ``tokenizer.json`` or its directory.

    The byte tokenizer has 258 ids: the bytes, BOS 256 and EOS 257. GPT-2 uses ``<|endoftext|>`` (50256) for both.

    Raises:
        ConfigError: no such tokenizer, or a file that is not a tokenizer definition.
    """
    if tokenizer_id == "bytes":
        identity = hashlib.sha256(b"zephon bytes tokenizer: 256 bytes, bos 256, eos 257").hexdigest()
        return Tokenizer("bytes", identity, 258, 256, 257, "", "bytes")
    if tokenizer_id == "gpt2":
        return _gpt2(backend)
    path = Path(tokenizer_id)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(
            f"tokenizer {tokenizer_id!r} is neither built in ('gpt2', 'bytes') nor a tokenizer.json",
            follows="it would have to be fetched from a network, which this loader never does silently",
            remedy="download the tokenizer once and give the path of its tokenizer.json",
        )
    return _from_file(tokenizer_id, file, backend)


@functools.lru_cache(maxsize=4)
def _gpt2(backend: str) -> Tokenizer:
    # Kept: its tables take a third of a second to build, and pipelines of one process may share them.
    definition = gpt2_definition()
    return Tokenizer("gpt2", _hash(definition), 50257, 50256, 50256, definition, backend)


def _from_file(tokenizer_id: str, file: Path, backend: str) -> Tokenizer:
    try:
        loaded: Json = json.loads(file.read_text("utf-8-sig"))  # some editors put a byte order mark before it
        vocab = loaded["model"]["vocab"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{file} is not a tokenizer definition: {error!r}",
            remedy="give the tokenizer.json that the tokenizers library writes",
        ) from error
    loaded["truncation"] = loaded["padding"] = None  # lengths are this loader's business
    definition = json.dumps(loaded, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    added = {token["content"]: int(token["id"]) for token in loaded.get("added_tokens", [])}
    ids = vocab.values() if isinstance(vocab, dict) else range(len(vocab))
    size = max([*ids, *added.values()]) + 1
    configured = _configured(file.parent / "tokenizer_config.json")
    bos = _special(configured.get("bos_token"), added, _BOS)
    eos = _special(configured.get("eos_token"), added, _EOS)
    templates = _chat_templates(configured.get("chat_template"), file.parent)
    return Tokenizer(tokenizer_id, _hash(definition), size, bos, eos, definition, backend, templates)


def _configured(file: Path) -> Json:
    if not file.is_file():
        return {}
    try:
        loaded = json.loads(file.read_text("utf-8-sig"))
    except ValueError as error:
        raise _unreadable(file, str(error)) from error
    if not isinstance(loaded, dict):
        raise _unreadable(file, f"it holds a JSON {type(loaded).__name__}, not an object")
    return loaded


def _chat_templates(configured: object, directory: Path) -> tuple[tuple[str, str], ...]:
    """(name, template) of each chat template in a tokenizer's configuration, or beside it; one without a name is "default"."""
    if isinstance(configured, str):
        return (("default", configured),)
    if isinstance(configured, list) and configured:
        try:
            return tuple((str(entry["name"]), str(entry["template"])) for entry in configured)
        except (TypeError, KeyError) as error:
            file = directory / "tokenizer_config.json"
            raise _unreadable(file, "an entry of its chat_template has no name and template") from error
    beside = directory / "chat_template.jinja"
    return (("default", beside.read_text("utf-8-sig")),) if beside.is_file() else ()


def _unreadable(file: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{file} cannot be read: {why}",
        follows="special tokens and the chat template would be missing silently",
        remedy="repair the file, or remove it and name special tokens and template in the pipeline",
    )


def _special(named: object, added: dict[str, int], usual: tuple[str, ...]) -> int | None:
    content = named.get("content") if isinstance(named, dict) else named
    if isinstance(content, str) and content in added:
        return added[content]
    return next((added[name] for name in usual if name in added), None)


def _hash(definition: str) -> str:
    return hashlib.sha256(definition.encode()).hexdigest()
