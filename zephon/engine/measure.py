"""Counts tokens and bytes of a dataset's sample: what turns a mixture in tokens into frequencies of chunks."""

from __future__ import annotations

from collections.abc import Sequence

from zephon.errors import DataError
from zephon.io import read
from zephon.ops.quarantine import QuarantinePolicy
from zephon.types import Ragged, Stage
from zephon.work import WorkSource


def count_sample(
    source: WorkSource, index: int, stages: Sequence[Stage], quarantine: QuarantinePolicy, most: int
) -> tuple[int, int]:
    """(tokens, bytes of the format's units) of at most about ``most`` documents of one dataset."""
    tokens = size = documents = 0
    for chunk in source.sample(index):
        bad: list[DataError] | None = [] if quarantine.of(index) else None
        try:
            columns = quarantine.run(stages, read(source.datasets[index], chunk, bad), chunk, bad or (), ())
        except Exception as error:
            source.datasets[index].note_address(error, ", while measuring tokens per byte")
            raise
        ids = columns.fields.get("input_ids")
        tokens += len(ids.values) if isinstance(ids, Ragged) else 0
        size += sum(piece.stop - piece.start for piece in chunk.ranges)
        documents += len(columns)
        if documents >= most:
            break
    return tokens, size
