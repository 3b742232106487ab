"""Parts of a rendered chat."""

from __future__ import annotations

from typing import NamedTuple


class ChatPart(NamedTuple):
    """A part of a rendered chat: text, or one special token.

    Args:
        text: what to tokenize, as ordinary text.
        token: the special token's id, or None for text.
        learned: whether the model learns it.
        span: number of the supervised span it is in.
    """

    text: str
    token: int | None
    learned: bool
    span: int = 0


class Unrenderable(Exception):
    """These messages and this template do not go together."""
