"""The pass itself: pieces of all datasets, measured by all cores, added up here.

    held-out pieces first     their runs of words go to a file, sorted
    then all the others       each is looked up there by every process, which maps the file into its memory

Memory does not grow with the number of documents: distributions are histograms, hashes of documents lie on disk, and of
held-out text at most `MOST_GRAMS` runs are kept, those with the smallest hashes, which is an even sample.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

import numpy as np

from zephon.io import Dataset
from zephon.pipeline.survey.grams import Hashes
from zephon.pipeline.survey.piece import Measured, Task
from zephon.pipeline.survey.repeats import HashFiles, Place
from zephon.pipeline.survey.summary import Summary
from zephon.types import Chunk, Json, ShardRange

PIECE = 8 << 20
WHOLE = 64 << 20  # a compressed shard is decoded as a whole, so it is one piece
MOST_GRAMS = 32 << 20
EXAMPLES = 10
_PACKED = (".gz", ".zst", ".zstd")

Progress = Callable[[int], None]
"""Called with the bytes of each piece that is done."""


class Overlap(NamedTuple):
    """Runs of words of held-out text: how many are known, what part of all these are, and how many training text has too."""

    known: int
    part: float
    met: int


@dataclasses.dataclass(frozen=True)
class Survey:
    """What the data hold.

    Args:
        summaries: by dataset.
        held_out: names of those that are held out.
        repeats: documents that repeat an earlier one, by dataset.
        shared: texts that two datasets both have, by their names.
        examples: pairs of addresses with the same text.
        overlap: of training text with held-out text; None where nothing is held out.
    """

    summaries: dict[str, Summary]
    held_out: list[str]
    repeats: dict[str, int]
    shared: dict[tuple[str, str], int]
    examples: list[tuple[str, str]]
    overlap: Overlap | None

    @property
    def faulty(self) -> bool:
        """Whether a record is malformed or damaged, or held-out text is trained on."""
        broken = any(summary.bad or summary.without for summary in self.summaries.values())
        return broken or any(summary.overlap for name, summary in self.summaries.items() if name not in self.held_out)

    def to_json(self) -> Json:
        return {
            "datasets": {
                name: {**summary.to_json(), "held_out": name in self.held_out, "repeated": self.repeats.get(name, 0)}
                for name, summary in self.summaries.items()
            },
            "shared": [{"datasets": list(names), "texts": count} for names, count in self.shared.items()],
            "repeats": [{"address": first, "again": again} for first, again in self.examples],
            "overlap": None if self.overlap is None else self.overlap._asdict(),
            "faulty": self.faulty,
        }


def pieces_of(dataset: Dataset, number: int) -> Iterator[Chunk]:
    """A dataset in pieces of about `PIECE` bytes; small shards share one, and a compressed shard is not divided."""
    ranges: list[ShardRange] = []
    size = index = 0
    for shard, length in enumerate(dataset.sizes.tolist()):
        whole = dataset.shards[shard].lower().endswith(_PACKED) or length <= PIECE
        step = length if whole else PIECE
        for start in range(0, length, max(1, step)):
            ranges.append(ShardRange(shard, start, min(start + step, length)))
            size += ranges[-1].stop - start
            if size >= PIECE or len(ranges) >= 1024:
                yield Chunk(number, 0, index, tuple(ranges))
                ranges, size, index = [], 0, index + 1
    if ranges:
        yield Chunk(number, 0, index, tuple(ranges))


def survey(
    datasets: Sequence[Dataset],
    fields: Sequence[str],
    held_out: Sequence[Dataset] = (),
    held_out_fields: Sequence[str] = (),
    *,
    tokenizer: str | None = None,
    backend: str = "auto",
    workers: int = 1,
    progress: Progress = lambda size: None,
) -> Survey:
    """Reads all documents once, and counts.

    Args:
        datasets, fields: what is trained on, and the field with the text of each.
        held_out, held_out_fields: the same of what is held out.
        tokenizer, backend: to count tokens; None counts none.
        workers: processes; 1 is this one.
        progress: see `Progress`.

    Raises:
        ZephonError: data that cannot be read at all, as a store that refuses. Malformed records are counted.
    """
    everything = [*datasets, *held_out]
    task = Task(
        datasets=everything,
        held_out=len(datasets),
        fields=[*fields, *held_out_fields],
        tokenizer=tokenizer,
        backend=backend,
    )
    summaries = [Summary() for _ in everything]
    with HashFiles() as hashes, tempfile.TemporaryDirectory(prefix="zephon-") as folder:
        grams, part = np.zeros(0, np.uint64), 1.0
        if held_out:
            for measured in _measured(task, range(len(datasets), len(everything)), workers):
                _add(measured, summaries, hashes, progress)
                grams, part = _kept(grams, measured.grams, part)
            task.grams = Path(folder) / "grams.npy"
            np.save(task.grams, grams)
        met = np.zeros(len(grams), bool)
        for measured in _measured(task, range(len(datasets)), workers):
            _add(measured, summaries, hashes, progress)
            met[measured.met] = True
        repeats = hashes.count(EXAMPLES)
    names = [dataset.name for dataset in datasets] + [f"held out: {dataset.name}" for dataset in held_out]

    def address(place: Place) -> str:
        return f"{names[place.dataset]}, {everything[place.dataset].address(place.shard, place.row)}"

    return Survey(
        dict(zip(names, summaries, strict=True)),
        names[len(datasets) :],
        {names[number]: count for number, count in sorted(repeats.within.items())},
        {(names[first], names[other]): count for (first, other), count in sorted(repeats.across.items())},
        [(address(first), address(again)) for first, again in repeats.examples],
        Overlap(len(grams), part, int(met.sum())) if held_out else None,
    )


def _add(measured: Measured, summaries: list[Summary], hashes: HashFiles, progress: Progress) -> None:
    summaries[measured.dataset].merge(measured.summary)
    hashes.add(measured.entries)
    progress(measured.size)


def _kept(grams: Hashes, more: Hashes, part: float) -> tuple[Hashes, float]:
    """Both, or of both those with the smallest hashes, and what part of all hashes these are."""
    both = np.union1d(grams, more[more < np.uint64(int(part * (1 << 64)) - 1)] if part < 1 else more)
    while len(both) > MOST_GRAMS:
        part /= 2
        both = both[both < np.uint64(int(part * (1 << 64)))]
    return both, part


def _measured(task: Task, numbers: Sequence[int], workers: int) -> Iterator[Measured]:
    """All pieces of these datasets, in order: what is kept of many does not depend on which process was first."""
    chunks = (chunk for number in numbers for chunk in pieces_of(task.datasets[number], number))
    if workers < 2:
        yield from map(task.measure, chunks)
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin, (task,)) as pool:
        waiting: list[Future[Measured]] = []
        with contextlib.ExitStack() as stack:
            stack.callback(lambda: [future.cancel() for future in waiting])
            for chunk in chunks:
                waiting.append(pool.submit(_measure, chunk))
                if len(waiting) >= 4 * workers:
                    wait(waiting[:1], return_when=FIRST_COMPLETED)
                    yield waiting.pop(0).result()
            while waiting:
                yield waiting.pop(0).result()


_task: list[Task] = []


def _begin(task: Task) -> None:
    _task.append(task)


def _measure(chunk: Chunk) -> Measured:
    return _task[0].measure(chunk)
