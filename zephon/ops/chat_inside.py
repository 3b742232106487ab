"""Ids of a chat's parts as they are inside the whole text, for tokenizers that put a space before every text.

Encoded alone, each part would begin with a space that the text does not have. So what stands between two special tokens is
encoded up to the end of each part: what is new in the ids belongs to that part. Where the ids before it change, a token lies
across the border and no part of it can be learned alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from zephon.ops.chat_parts import ChatPart
from zephon.ops.tokenizers import Tokenizer
from zephon.types import Ragged


class Crossing(Exception):
    """A token lies across the border of two parts of a document.

    Args:
        document: its number.
        before, after: the texts on both sides.
    """

    def __init__(self, document: int, before: str, after: str) -> None:
        super().__init__(f"a token lies across the border between {before[-20:]!r} and {after[:20]!r}")
        self.document = document


def ids_inside(tokenizer: Tokenizer, documents: Sequence[Sequence[ChatPart]]) -> Ragged:
    """The ids of all parts that are text, in their order.

    Raises:
        Crossing: where a part has no ids of its own.
    """
    sections = list(_sections(documents))
    upto = [text for _, _, parts in sections for text in itertools.accumulate(part.text for part in parts)]
    at_start = np.array([first for _, first, parts in sections for _ in parts], bool)
    rows: list[list[int]] = [[] for _ in upto]
    for encoder, chosen in ((tokenizer, at_start), (tokenizer.past_start, ~at_start)):
        places = np.flatnonzero(chosen).tolist()
        encoded = encoder.encode([upto[i] for i in places])
        for n, i in enumerate(places):
            rows[i] = encoded[n].tolist()
    new_ids: list[np.ndarray] = []
    waiting = iter(rows)
    for document, _, parts in sections:
        before: list[int] = []
        for i, part in enumerate(parts):
            row = next(waiting)
            if row[: len(before)] != before:
                raise Crossing(document, parts[i - 1].text, part.text)
            new_ids.append(np.array(row[len(before) :], np.uint32))
            before = row
    return Ragged.of(new_ids)


def _sections(documents: Sequence[Sequence[ChatPart]]) -> Iterator[tuple[int, bool, list[ChatPart]]]:
    """(document, whether it begins the document, parts) of each run of text without a special token in it."""
    for document, parts in enumerate(documents):
        begins = True
        for is_text, run in itertools.groupby(parts, lambda part: part.token is None):
            if is_text:
                yield document, begins, list(run)
            begins = False
