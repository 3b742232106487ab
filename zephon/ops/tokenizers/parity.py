"""Does a fast back end give the reference's ids on this run's own text?"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from zephon.ops.tokenizers.backends import make_backend
from zephon.ops.tokenizers.tokenizer import Tokenizer


def check_parity(tokenizer: Tokenizer, texts: Iterable[str], *, limit_bytes: int = 1 << 20) -> tuple[Tokenizer, str | None]:
    """Compares the tokenizer's back end with the ``tokenizers`` library on about ``limit_bytes`` of text.

    Returns:
        The tokenizer to use (the same, or one on the reference back end) and, when they differ, a sentence that says where.
    """
    if not tokenizer.definition or tokenizer.backend.name == "tokenizers":
        return tokenizer, None
    reference = make_backend("tokenizers", tokenizer.definition)
    used = 0
    for text in texts:
        fast, slow = tokenizer.encode([text]).values, reference.encode([text]).values
        if not np.array_equal(fast, slow):
            place = int(np.argmax(fast[: len(slow)] != slow[: len(fast)])) if len(fast) and len(slow) else 0
            why = (
                f"back end {tokenizer.backend.name!r} differs from 'tokenizers' at token {place} of the text that begins "
                f"{text[:40]!r}; falling back to 'tokenizers', which is slower"
            )
            return dataclasses.replace(tokenizer, backend_name="tokenizers"), why
        used += len(text)
        if used >= limit_bytes:
            break
    return tokenizer, None
