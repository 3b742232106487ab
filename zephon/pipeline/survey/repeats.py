"""Exact duplicates among any number of documents, in bounded memory: their hashes lie on disk, in 256 files by first byte.

A document takes 24 bytes there, so 100 million take 2.4 GB in the folder for temporary files, and a 256th of it in memory when
the duplicates of one file are counted.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

PARTS = 256
ENTRY = np.dtype([("hash", "<u8"), ("row", "<i8"), ("shard", "<i4"), ("dataset", "<i4")])
Entries = npt.NDArray[np.void]


class Place(NamedTuple):
    """Where a document lies, by numbers."""

    dataset: int
    shard: int
    row: int


class Repeats(NamedTuple):
    """Documents that repeat another one.

    Args:
        within: by dataset, those whose text came before in the same dataset.
        across: by (dataset, other), distinct texts that both have.
        examples: (a document, where its text stands again).
    """

    within: dict[int, int]
    across: dict[tuple[int, int], int]
    examples: list[tuple[Place, Place]]


class HashFiles:
    """Takes the hashes of all documents, and counts. A context: its files go with it."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._folder: Path | None = None

    def __enter__(self) -> HashFiles:
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="zephon-")))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _file(self, part: int) -> Path:
        assert self._folder is not None
        return self._folder / f"{part:02x}"

    def add(self, entries: Entries) -> None:
        parts = entries["hash"] >> np.uint64(56)
        order = np.argsort(parts, kind="stable")
        edges = np.searchsorted(parts[order], np.arange(PARTS + 1))
        for part in np.flatnonzero(np.diff(edges)).tolist():
            with open(self._file(part), "ab") as file:
                file.write(entries[order[edges[part] : edges[part + 1]]].tobytes())

    def count(self, most_examples: int) -> Repeats:
        """All duplicates. The same whatever the order in which documents were added."""
        repeats = Repeats({}, {}, [])
        for part in range(PARTS):
            file = self._file(part)
            if file.exists():
                _count(np.sort(np.fromfile(file, ENTRY), order=["hash", "dataset", "shard", "row"]), repeats, most_examples)
        return repeats


def _count(entries: Entries, repeats: Repeats, most_examples: int) -> None:
    same_text = entries["hash"][1:] == entries["hash"][:-1]
    same_dataset = entries["dataset"][1:] == entries["dataset"][:-1]
    for dataset, number in zip(*np.unique(entries["dataset"][1:][same_text & same_dataset], return_counts=True), strict=True):
        repeats.within[int(dataset)] = repeats.within.get(int(dataset), 0) + int(number)
    begins = np.flatnonzero(np.concatenate([[True], ~same_text]))
    ends = np.append(begins[1:], len(entries))
    for begin, end in zip(begins[ends - begins > 1].tolist(), ends[ends - begins > 1].tolist(), strict=True):
        owners = np.unique(entries["dataset"][begin:end]).tolist()
        for i, owner in enumerate(owners):
            for other in owners[i + 1 :]:
                repeats.across[owner, other] = repeats.across.get((owner, other), 0) + 1
        if len(repeats.examples) < most_examples:
            first, again = (Place(*(int(entries[n][name]) for name in ("dataset", "shard", "row"))) for n in (begin, end - 1))
            repeats.examples.append((first, again))
