"""Which columns a stream of stored tokens has: looked up once, in the first documents of each dataset in stored order.

The documents are the same for every rank, lane, step and size, so that a restart in the middle of the data follows the rule
with which the stream began, whatever the next document, part or block happens to have.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zephon.errors import ConfigError
from zephon.io import read
from zephon.ops.fields import extract_token_columns
from zephon.types import ALIGNED_FIELDS, Columns, Ragged, Stage, TokenColumns
from zephon.work import WorkSource

MOST = 64  # documents that are looked at


def token_columns_of(source: WorkSource, index: int, stages: Sequence[Stage]) -> TokenColumns | None:
    """The rule of one dataset; None where none of its first documents has a token.

    The first document with tokens decides. A field of another name than `ALIGNED_FIELDS` is a column where it is as long as the
    tokens there, and in all documents after it that have the field. A document in which something fails is passed over: the
    stream says so where it comes to it.
    """
    dataset = source.datasets[index]
    aligned: list[str] | None = None
    others: set[str] = set()
    first = ""
    for document in _first_documents(source, index):
        columns = _through(document, stages)
        ids = None if columns is None else columns.fields.get("input_ids")
        if columns is None or not isinstance(ids, Ragged) or len(ids.values) == 0:
            continue
        names = {*columns.fields, *(name for record in columns.records or () for name in record)} - {"input_ids"}
        as_long = {
            name
            for name in names
            if isinstance(column := columns.fields.get(name), Ragged) and len(column.values) == len(ids.values)
        }
        if aligned is None:
            aligned, first = sorted(as_long), str(dataset.address(int(document.shard[0]), int(document.row[0])))
        aligned = [name for name in aligned if name in ALIGNED_FIELDS or name in as_long or name not in names]
        others |= names - as_long
    return None if aligned is None else TokenColumns(tuple(aligned), frozenset(others - set(aligned)), first)


def refuse_different(rules: Sequence[TokenColumns]) -> None:
    """Raises ConfigError where datasets that are packed into the same rows have different columns."""
    for rule in rules:
        if rule.aligned != rules[0].aligned:
            name = sorted({*rule.aligned} ^ {*rules[0].aligned})[0]
            has, lacks = (rule, rules[0]) if name in rule.aligned else (rules[0], rule)
            raise ConfigError(
                f"{has.first} has a field {name!r} with one number for each token, and {lacks.first} has none",
                follows="a row with documents of both datasets would have no value for some tokens",
                remedy="give all documents of a stream the same fields, with a map_transform or in the files",
            )


def _first_documents(source: WorkSource, index: int) -> list[Columns]:
    """Up to `MOST` documents, each alone: of the first piece, or of eight where that holds none."""
    for pieces in (1, 8):
        for chunk in source.sample(index, pieces):
            try:
                columns = read(source.datasets[index], chunk, [])
            except Exception:  # noqa: BLE001 - the stream raises it when it comes here
                continue
            if len(columns):
                return [columns.take(np.array([i])) for i in range(min(MOST, len(columns)))]
    return []


def _through(document: Columns, stages: Sequence[Stage]) -> Columns | None:
    try:
        for stage in (*stages, extract_token_columns):
            document = stage(document)
    except Exception:  # noqa: BLE001 - the stream raises it, or puts the document into quarantine
        return None
    return document
