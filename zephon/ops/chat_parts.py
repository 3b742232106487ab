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


class ContentParts(list[object]):
    """A message's content as a list of parts, for templates that go over them: whole they print as Python's notation."""

    def __str__(self) -> str:
        raise Unrenderable(
            "the content of a message is a list of parts, which the template prints as it is; make it one text "
            "before, or use a template that goes over the parts"
        )

    __repr__ = __str__


def text_of(content: object) -> str:
    """A message's content as text: a string, nothing, or the parts of type "text" put together.

    Raises:
        Unrenderable: it is something else, or has a part that is no text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, (list, tuple)):
        raise Unrenderable(f"the content of a message is {type(content).__name__} {str(content)[:40]!r}, not text")
    return "".join(map(_text_of_part, content))


def _text_of_part(part: object) -> str:
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, dict) and part.get("type", "text") == "text" else None
    if not isinstance(text, str):
        raise Unrenderable(f"the content of a message has the part {str(part)[:40]!r}, which is no text")
    return text
