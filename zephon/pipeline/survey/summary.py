"""What one piece of a dataset holds; sums of pieces are the dataset's. Its size does not grow with the number of documents."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from zephon.pipeline.survey.scripts import NAMES
from zephon.types import IntArray, Json

STEPS = 4  # buckets in each doubling of a length: a quantile is right to a fifth
BUCKETS = 41 * STEPS
KEPT = 8  # addresses of each kind of trouble


class Lengths:
    """Counts of lengths in buckets that grow by a fifth, with exact least, greatest and sum."""

    def __init__(self) -> None:
        self.counts: IntArray = np.zeros(BUCKETS, np.int64)
        self.sum = self.greatest = 0

    def add(self, lengths: IntArray) -> None:
        if len(lengths):
            places = np.where(lengths > 0, np.floor(STEPS * np.log2(np.maximum(lengths, 1))) + 1, 0).astype(np.int64)
            self.counts += np.bincount(np.minimum(places, BUCKETS - 1), minlength=BUCKETS)
            self.sum += int(lengths.sum())
            self.greatest = max(self.greatest, int(lengths.max()))

    def merge(self, other: Lengths) -> None:
        self.counts = self.counts + other.counts
        self.sum += other.sum
        self.greatest = max(self.greatest, other.greatest)

    @property
    def number(self) -> int:
        return int(self.counts.sum())

    def quantile(self, part: float) -> int:
        """The length that this part of all is not longer than, to within a fifth."""
        if not self.number:
            return 0
        place = int(np.searchsorted(np.cumsum(self.counts), math.ceil(part * self.number)))
        return 0 if place == 0 else min(self.greatest, math.ceil(2 ** (place / STEPS)) - 1)

    def doublings(self) -> list[tuple[int, int]]:
        """(at least so long, number) for each doubling that occurs, and for 0."""
        rows = [(0, int(self.counts[0]))]
        rows += [(1 << k, int(self.counts[1 + k * STEPS : 1 + (k + 1) * STEPS].sum())) for k in range(BUCKETS // STEPS)]
        return [row for row in rows if row[1]]

    def to_json(self) -> Json:
        number = self.number
        return {
            "mean": self.sum / number if number else 0.0,
            **{f"p{round(100 * part)}": self.quantile(part) for part in (0.1, 0.5, 0.9, 0.99)},
            "greatest": self.greatest,
            "sum": self.sum,
            "histogram": [{"from": start, "documents": count} for start, count in self.doublings()],
        }


@dataclasses.dataclass
class Summary:
    """Of a piece or a dataset.

    Args:
        documents, empty, bad, without: read; of no letter; malformed; lacking the field.
        text_bytes, packed_bytes: of the text as UTF-8, and compressed.
        characters, tokens: distributions over documents.
        letters: by script.
        troubles: (kind, address, what) of the first of each kind.
        largest: (characters, address) of the largest documents.
        overlap: documents that have a run of words with held-out text, and the first of them.
    """

    documents: int = 0
    empty: int = 0
    bad: int = 0
    without: int = 0
    text_bytes: int = 0
    packed_bytes: int = 0
    characters: Lengths = dataclasses.field(default_factory=Lengths)
    tokens: Lengths = dataclasses.field(default_factory=Lengths)
    letters: IntArray = dataclasses.field(default_factory=lambda: np.zeros(len(NAMES), np.int64))
    troubles: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)
    largest: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    overlap: int = 0
    overlapping: list[str] = dataclasses.field(default_factory=list)

    def trouble(self, kind: str, address: str, what: str) -> None:
        """Keeps the first `KEPT` of a kind."""
        if sum(known == kind for known, _, _ in self.troubles) < KEPT:
            self.troubles.append((kind, address, what))

    def merge(self, other: Summary) -> None:
        for name in ("documents", "empty", "bad", "without", "text_bytes", "packed_bytes", "overlap"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.characters.merge(other.characters)
        self.tokens.merge(other.tokens)
        self.letters = self.letters + other.letters
        for kind, address, what in other.troubles:
            self.trouble(kind, address, what)
        self.largest = sorted([*self.largest, *other.largest], reverse=True)[:3]
        self.overlapping = [*self.overlapping, *other.overlapping][:KEPT]

    @property
    def ratio(self) -> float:
        """Bytes of text for one compressed byte: much above its neighbours', it is a sign of repetition."""
        return self.text_bytes / self.packed_bytes if self.packed_bytes else 0.0

    def scripts(self) -> dict[str, float]:
        """Share of each script among all letters, the greatest first."""
        total = int(self.letters.sum())
        shares = {name: int(count) / total for name, count in zip(NAMES, self.letters, strict=True) if count}
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    def to_json(self) -> Json:
        return {
            "documents": self.documents,
            "empty": self.empty,
            "malformed": self.bad,
            "without_field": self.without,
            "text_bytes": self.text_bytes,
            "compression_ratio": round(self.ratio, 3),
            "characters": self.characters.to_json(),
            "tokens": self.tokens.to_json() if self.tokens.number else None,
            "scripts": self.scripts(),
            "troubles": [dict(zip(("kind", "address", "what"), trouble, strict=True)) for trouble in self.troubles],
            "largest": [{"characters": size, "address": address} for size, address in self.largest],
            "overlapping_documents": self.overlap,
            "overlapping": self.overlapping,
        }
