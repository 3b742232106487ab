"""A tokenizer as stages see it."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from zephon.errors import ConfigError, nearest
from zephon.ops.tokenizers.backends import PREFERENCE, Backend, Unencodable, make_backend
from zephon.ops.tokenizers.proof import Proof, choose, prove
from zephon.types import Json, Ragged

if TYPE_CHECKING:
    import tokenizers


@dataclasses.dataclass(frozen=True, eq=False)
class Tokenizer:
    """A tokenizer's definition and the means to run it.

    Args:
        id: the name it was asked for.
        identity: SHA-256 of the definition; what the contract pins.
        vocab_size: number of ids.
        bos_id, eos_id: ids of the special tokens, or None where there are none.
        definition: the canonical ``tokenizer.json`` text; empty for byte tokenizers.
        backend_name: which back end is asked for. It never decides ids: see `zephon.ops.tokenizers.proof`.
        chat_templates: (name, Jinja template) of each that came with it.

    The back end is built at first use, so constructing one is cheap, and pickling ships the definition
    and what was proven about it.
    """

    id: str
    identity: str
    vocab_size: int
    bos_id: int | None
    eos_id: int | None
    definition: str
    backend_name: str
    chat_templates: tuple[tuple[str, str], ...] = ()

    @property
    def chat_template(self) -> str | None:
        """The template called "default", or the only one; None where there is none or a choice among several."""
        templates = dict(self.chat_templates)
        return templates.get("default") or (next(iter(templates.values())) if len(templates) == 1 else None)

    @functools.cached_property
    def proof(self) -> Proof | None:
        """Whether the fast back end is exact, and the fingerprint of the ids; None for byte tokenizers."""
        return prove(self.definition) if self.definition else None

    @property
    def ids_sha256(self) -> str | None:
        """SHA-256 of the ids of a text that is hard to encode; None for byte tokenizers, whose ids are the bytes."""
        return self.proof.ids_sha256 if self.proof else None

    def describe(self) -> Json:
        """What decides the ids: the definition, and the ids themselves of a text that is hard to encode."""
        return {"tokenizer": self.identity} | ({"token_ids": self.ids_sha256} if self.proof else {})

    @functools.cached_property
    def backend(self) -> Backend:
        name, known = self.backend_name, ("auto", *PREFERENCE)
        if self.proof is None:
            return make_backend("bytes", "")
        if name not in known:
            raise ConfigError(f"tokenizer back end {name!r} is not known", remedy=nearest(name, known))
        return make_backend(choose(name, self.proof), self.definition)

    def encode(self, texts: list[str]) -> Ragged:
        return self.backend.encode(texts)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids, special tokens by their spelling; for looking at data, not for speed."""
        numbers = [int(number) for number in ids]
        if not self.definition:
            special = {self.bos_id: "<bos>", self.eos_id: "<eos>"}
            parts = [special[n].encode() if n in special else bytes([n]) for n in numbers]
            return b"".join(parts).decode("utf-8", "replace")
        text: str = self._reference.decode(numbers, skip_special_tokens=False)
        return text

    @functools.cached_property
    def _reference(self) -> tokenizers.Tokenizer:
        import tokenizers

        return tokenizers.Tokenizer.from_str(self.definition)

    @functools.cached_property
    def splits_anywhere(self) -> bool:
        """Whether a part of a text has the ids that it has inside the text; not where a space is put before every text."""
        pairs = (("\n", "x"), ("a", " x")) if self.definition else ()
        return all(self._splits_between(first, second) for first, second in pairs)

    def _splits_between(self, first: str, second: str) -> bool:
        try:
            return self._ids(first + second) == [*self._ids(first), *self._ids(second)]
        except Unencodable:
            return True

    @functools.cached_property
    def past_start(self) -> Tokenizer:
        """The same for a text that follows a special token: another one where only the first text gets a space before it."""
        loaded: Json = json.loads(self.definition or "{}")
        waiting, changed = [loaded.get("pre_tokenizer") or {}], False
        while waiting:
            part = waiting.pop()
            waiting.extend(part.get("pretokenizers", ()))
            if part.get("type") == "Metaspace" and part.get("prepend_scheme") == "first":
                part["prepend_scheme"], changed = "never", True
        return dataclasses.replace(self, definition=json.dumps(loaded, ensure_ascii=False)) if changed else self

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.encode([text]).values.tolist()
        return ids

    def __reduce__(self) -> tuple[object, ...]:
        fields = tuple(getattr(self, field.name) for field in dataclasses.fields(self))
        return (Tokenizer, fields, {"proof": vars(self)["proof"]} if "proof" in vars(self) else None)
