"""What one process does with one piece: reads it, and counts everything that is asked of it."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from zephon.errors import DataError, ZephonError, address_of
from zephon.io import Dataset, read
from zephon.io.field import column_of
from zephon.ops.tokenizers import Tokenizer, load_tokenizer
from zephon.pipeline.survey.grams import Hashes, document_hash, grams_of
from zephon.pipeline.survey.repeats import ENTRY, Entries
from zephon.pipeline.survey.scripts import letters_by_script
from zephon.pipeline.survey.summary import KEPT, Summary
from zephon.types import TOKEN_FIELDS, Array, Chunk, Columns, IntArray

HUGE = 1 << 20  # characters of a document that is named as huge


class Measured(NamedTuple):
    """Of one piece.

    Args:
        dataset: its number.
        size: bytes of the plan that it takes.
        summary: what it holds.
        entries: hash and address of each document.
        grams: runs of words of held-out text; empty for text that is trained on.
        met: places of those in the held-out runs that this piece has too.
    """

    dataset: int
    size: int
    summary: Summary
    entries: Entries
    grams: Hashes
    met: IntArray


@dataclasses.dataclass(kw_only=True)
class Task:
    """What is asked of every piece.

    Args:
        datasets: all of them; those from ``held_out`` on are held out.
        held_out: index of the first held-out one.
        fields: the field with the text, by dataset.
        tokenizer, backend: that counts tokens; None counts none.
        grams: a file with the sorted runs of all held-out text; None while they are collected, or where there are none.
    """

    datasets: Sequence[Dataset]
    held_out: int
    fields: Sequence[str]
    tokenizer: str | None
    backend: str
    grams: Path | None = None

    def __post_init__(self) -> None:
        self._tokenizer: Tokenizer | None = None
        self._grams: Hashes | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_tokenizer": None, "_grams": None}

    def measure(self, chunk: Chunk) -> Measured:
        """Reads a piece. What is broken in it is counted and named; what is no fault of a document is raised."""
        dataset = self.datasets[chunk.dataset]
        summary, bad = Summary(), list[DataError]()
        size = sum(stop - start for _, start, stop in chunk.ranges)
        columns = []
        for piece in chunk.ranges:  # a damaged shard does not hide the others
            try:
                columns.append(read(dataset, Chunk(chunk.dataset, 0, chunk.index, (piece,)), bad))
            except DataError as error:
                summary.bad += 1
                summary.trouble("damaged shard", f"{dataset.name} {dataset.shards[piece.shard]}", error.what)
        for fault in bad:
            address = address_of(fault)
            where = "" if address is None else str(dataset.address(address.shard, address.row))
            summary.trouble("malformed", where, fault.what)
        summary.bad += len(bad)
        parts = [self._documents(part, dataset, summary) for part in columns]
        entries = np.concatenate([entries for entries, _, _ in parts]) if parts else np.zeros(0, ENTRY)
        grams = [gram for _, gram, _ in parts if len(gram)]
        met = [places for _, _, places in parts if len(places)]
        return Measured(
            chunk.dataset,
            size,
            summary,
            entries,
            np.unique(np.concatenate(grams)) if grams else np.zeros(0, np.uint64),
            np.unique(np.concatenate(met)) if met else np.zeros(0, np.int64),
        )

    def _documents(self, columns: Columns, dataset: Dataset, summary: Summary) -> tuple[Entries, Hashes, IntArray]:
        texts, kept = self._texts(columns, dataset, summary)
        encoded = [text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text.tobytes() for text in texts]
        strings = [text for text in texts if isinstance(text, str)]
        summary.documents += len(texts)
        summary.text_bytes += sum(map(len, encoded))
        summary.packed_bytes += len(zlib.compress(b"".join(encoded), 1)) if encoded else 0
        if strings:
            summary.letters = summary.letters + letters_by_script("".join(strings))
        summary.characters.add(np.array([len(text) for text in strings], np.int64))
        for row, text in zip(kept, texts, strict=True):
            self._remark(summary, str(dataset.address(int(columns.shard[row]), int(columns.row[row]))), text)
        self._count_tokens(texts, strings, summary)
        entries = np.zeros(len(texts), ENTRY)
        entries["hash"] = [document_hash(data) for data in encoded]
        entries["row"], entries["shard"] = columns.row[kept], columns.shard[kept]
        entries["dataset"] = columns.dataset
        grams, met = self._overlap(columns, dataset, kept, texts, summary)
        return entries, grams, met

    def _texts(self, columns: Columns, dataset: Dataset, summary: Summary) -> tuple[list[str | Array], list[int]]:
        """The texts, or stored ids, of the documents that have some, and which documents these are."""
        values, _ = column_of(columns, self.fields[columns.dataset])
        ids = next((name for name in TOKEN_FIELDS if name in columns.fields), None)
        texts: list[str | Array] = []
        kept: list[int] = []
        for row in range(len(columns)):
            value = values[row]
            if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
                value = "\n".join(value)
            if isinstance(value, str):
                texts.append(value)
            elif ids is not None and isinstance(number := columns.fields[ids][row], np.ndarray):
                texts.append(number)
            else:
                summary.without += 1
                address = str(dataset.address(int(columns.shard[row]), int(columns.row[row])))
                kind = "nothing" if value is None else type(value).__name__
                summary.trouble("no text", address, f"field {self.fields[columns.dataset]!r} holds {kind}")
                continue
            kept.append(row)
        return texts, kept

    def _remark(self, summary: Summary, address: str, text: str | Array) -> None:
        if isinstance(text, str) and (not text or text.isspace()):
            summary.empty += 1
            summary.trouble("empty", address, "no character but spaces")
        if len(text) > HUGE:
            summary.trouble("huge", address, f"{len(text):,} characters")
        if len(summary.largest) < 3 or len(text) > summary.largest[-1][0]:
            summary.largest = sorted([*summary.largest, (len(text), address)], reverse=True)[:3]

    def _count_tokens(self, texts: list[str | Array], strings: list[str], summary: Summary) -> None:
        stored = [len(text) for text in texts if not isinstance(text, str)]
        summary.tokens.add(np.array(stored, np.int64))
        if self.tokenizer is None or not strings:
            return
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self.tokenizer, backend=self.backend)
        try:
            summary.tokens.add(self._tokenizer.encode(strings).lengths())
        except (UnicodeEncodeError, ZephonError) as error:
            summary.trouble("no text", "", f"cannot be tokenized: {error}")

    def _overlap(
        self, columns: Columns, dataset: Dataset, kept: list[int], texts: list[str | Array], summary: Summary
    ) -> tuple[Hashes, IntArray]:
        nothing = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        if columns.dataset >= self.held_out:
            collected = [grams_of(text) for text in texts if isinstance(text, str)]
            return (np.unique(np.concatenate(collected)) if collected else nothing[0]), nothing[1]
        if self.grams is None:
            return nothing
        if self._grams is None:
            self._grams = np.load(self.grams, mmap_mode="r")
        known, met = self._grams, []
        for row, text in zip(kept, texts, strict=True):
            if not isinstance(text, str) or not len(known):
                continue
            grams = grams_of(text)
            places = np.minimum(np.searchsorted(known, grams), len(known) - 1)
            places = places[known[places] == grams]
            if len(places):
                summary.overlap += 1
                if len(summary.overlapping) < KEPT:
                    address = dataset.address(int(columns.shard[row]), int(columns.row[row]))
                    summary.overlapping.append(f"{address}: {len(places)} of its {len(grams)} runs of words")
                met.append(places)
        return nothing[0], (np.unique(np.concatenate(met)) if met else nothing[1])
