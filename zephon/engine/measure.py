"""Tokens a byte of a dataset, measured on a sample: what turns a mixture in tokens into frequencies of chunks.

The documents that begin in a sampled piece are counted with their own bytes, also where the last one goes on behind the piece:
documents are often larger than a piece, and all pieces together then hold each document once.

    pieces     |--0--|     |     |     |--4--|     |     |     |      8, then 16, 32, 64, until the standard error is small
    documents   aaaaaaaaa bb                cccccccccc                tokens of a and c / bytes of a and c

Pieces are spread evenly, so that the error is estimated from the differences between neighbours: data that changes slowly, or
once, is known better than the same documents in any order would be.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from zephon.errors import DataError
from zephon.io import read
from zephon.ops.quarantine import QuarantinePolicy
from zephon.seeds import permutation
from zephon.types import Chunk, Ragged, Sampled, Stage
from zephon.work import WorkSource

FIRST, MOST = 8, 64  # pieces of a dataset
LARGE = 1 << 20  # bytes for a lane: where there are as many, nobody asks whether each has a document
SMALL = 10_000  # a standard error that is small enough, in millionths


class _Piece(NamedTuple):
    """What the documents that begin in a piece hold; where only some were looked at, as many as if all were like them."""

    tokens: int
    size: int
    documents: int
    whole: bool


def measure(source: WorkSource, index: int, stages: Sequence[Stage], quarantine: QuarantinePolicy, documents: int) -> Sampled:
    """Tokens and bytes of about ``documents`` documents of one dataset, of more where they differ much.

    Raises:
        DataError: a document that cannot be used, or a dataset without a document.
    """
    pieces: dict[int, _Piece] = {}
    wanted, limit = FIRST, max(1, documents // FIRST)
    while True:
        chunks = source.sample(index, wanted)
        for chunk in chunks:
            if chunk.index not in pieces:
                pieces[chunk.index] = _count(source, chunk, stages, quarantine, limit)
        counted = [pieces[number] for number in sorted(pieces)]
        filled = sum(piece.documents > 0 for piece in counted)
        complete = len(chunks) < wanted
        if complete and not filled:
            raise DataError(
                f"dataset {source.datasets[index].name!r} holds no document",
                follows="its share of the mixture could never be filled",
                remedy="check that its files were written to the end, or remove it from the mixture",
            )
        tokens, size = sum(piece.tokens for piece in counted), sum(piece.size for piece in counted)
        error = 0 if complete and all(piece.whole for piece in counted) else _error(counted, tokens, size)
        enough = complete or filled >= FIRST
        if filled and ((enough and error <= SMALL) or wanted >= MOST):
            return Sampled(tokens, size, error, sum(piece.documents for piece in counted))
        if complete:  # there is no other piece, but more documents in each
            limit, pieces = source.datasets[index].size, {}
        else:
            wanted *= 2


def _count(source: WorkSource, chunk: Chunk, stages: Sequence[Stage], quarantine: QuarantinePolicy, limit: int) -> _Piece:
    """Counts a piece's documents, or at most ``limit`` of them, chosen by a key."""
    bad: list[DataError] | None = [] if quarantine.of(chunk.dataset) else None
    sizes: list[int] = []
    try:
        columns = read(source.datasets[chunk.dataset], chunk, bad, sizes)
        count = len(columns)
        # No regular choice, which would meet a rhythm of the documents.
        some = columns if count <= limit else columns.take(np.sort(permutation(chunk.index, count)[:limit]))
        chosen = len(some)
        result = quarantine.run(stages, some, chunk, bad or (), ())
    except Exception as error:
        source.datasets[chunk.dataset].note_address(error, ", while measuring tokens per byte")
        raise
    ids = result.fields.get("input_ids")
    tokens = len(ids.values) * count // chosen if isinstance(ids, Ragged) and chosen else 0
    return _Piece(tokens, sum(sizes), count, count <= limit)


def _error(pieces: Sequence[_Piece], tokens: int, size: int) -> int:
    """Standard error of tokens / size, in millionths of it."""
    if not tokens:
        return 0
    if len(pieces) < 2:
        return 1_000_000  # one piece says nothing about others
    apart = [piece.tokens - tokens * piece.size / size for piece in pieces]
    squares = math.fsum((b - a) ** 2 for a, b in itertools.pairwise(apart))
    return round(1e6 * math.sqrt(squares * len(pieces) / (2 * (len(pieces) - 1))) / tokens)


def few_documents(source: WorkSource, lanes: int) -> str | None:
    """What is wrong with a source that holds fewer documents than there are lanes; None where it has enough.

    Counts small data, and estimates from a sample where it has less than `LARGE` bytes for each lane; other data is not read.
    """
    if sum(dataset.size for dataset in source.datasets) >= lanes * LARGE:
        return None
    documents, about = 0, ""
    for index, dataset in enumerate(source.datasets):
        pieces, sizes = source.sample(index, FIRST), list[int]()
        count = sum(len(read(dataset, piece, [], sizes)) for piece in pieces)
        if len(pieces) == FIRST and sum(sizes) < dataset.size:
            count, about = count * dataset.size // max(1, sum(sizes)), "about "
        documents += count
        if documents >= lanes:
            return None
    if not documents:  # a lane that finds none at all is an error of its own
        return None
    return (
        f"the data holds {about}{documents} documents for {lanes} lanes: some lanes have none or, where it repeats, several "
        f"read the same ones at once; use at most {documents} lanes, or more data"
    )
