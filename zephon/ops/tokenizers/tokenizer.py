"""A tokenizer as stages see it."""

from __future__ import annotations

import dataclasses
import functools

from zephon.ops.tokenizers.backends import Backend, make_backend
from zephon.types import Ragged


@dataclasses.dataclass(frozen=True, eq=False)
class Tokenizer:
    """A tokenizer's definition and the means to run it.

    Args:
        id: the name it was asked for.
        identity: SHA-256 of the definition; what the contract pins.
        vocab_size: number of ids.
        bos_id, eos_id: ids of the special tokens, or None where there are none.
        definition: the canonical ``tokenizer.json`` text; empty for byte tokenizers.
        backend_name: which back end to run it with.
        chat_template: the Jinja template that came with it, or None.

    The back end is built at first use, so constructing one is cheap, and pickling ships the definition alone.
    """

    id: str
    identity: str
    vocab_size: int
    bos_id: int | None
    eos_id: int | None
    definition: str
    backend_name: str
    chat_template: str | None = None

    @functools.cached_property
    def backend(self) -> Backend:
        return make_backend(self.backend_name, self.definition)

    def encode(self, texts: list[str]) -> Ragged:
        return self.backend.encode(texts)

    def __reduce__(self) -> tuple[object, ...]:
        return (Tokenizer, tuple(getattr(self, field.name) for field in dataclasses.fields(self)))
