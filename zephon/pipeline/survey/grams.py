"""Hashes of texts: of a whole document, and of all runs of 13 words in it, by which held-out text is sought in training data.

Thirteen words, in lower case and without punctuation, are the measure of appendix C of "Language models are few-shot learners"
(2020). A shorter text counts as one run. A hash has 64 bits: of a billion runs two of different text share one by 3% chance.
"""

from __future__ import annotations

import hashlib
import re
import zlib

import numpy as np
import numpy.typing as npt

from zephon.seeds import mixed

WORDS = 13
_WORD = re.compile(r"\w+")

Hashes = npt.NDArray[np.uint64]


def document_hash(data: bytes) -> int:
    """Of all bytes of a document: exact duplicates have the same."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def grams_of(text: str) -> Hashes:
    """uint64[runs]: one hash of each run of `WORDS` words, in the order of the text."""
    data = [word.encode("utf-8", "surrogatepass") for word in _WORD.findall(text.lower())]
    if not data:
        return np.zeros(0, np.uint64)
    low = np.array([zlib.crc32(word) for word in data], np.int64)
    high = np.array([zlib.adler32(word) for word in data], np.int64)
    words = mixed(0, low | high << 32)
    count = max(1, len(words) - WORDS + 1)
    runs = np.zeros(count, np.uint64)
    for place in range(min(WORDS, len(words))):
        runs = mixed(place, (runs ^ words[place : place + count]).view(np.int64))
    return runs
