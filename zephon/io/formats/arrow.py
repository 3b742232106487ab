"""Arrow IPC, as a file (``.arrow``, ``.feather`` of version 2) or as the stream that ``datasets.save_to_disk`` writes.

A document is a row:

    [ARROW1] | schema | dictionaries | batch 0 | batch 1 | ... | mark of the end | [footer | ARROW1]

A message says how long it is and how many rows it has, so the first chunk of a shard walks over the heads of its messages and
decodes none. The rows of a batch are laid evenly over the bytes that it takes, and belong to the range in which they begin.
A local file is mapped into memory; one that lies far away is fetched whole.
"""

from __future__ import annotations

import functools
import struct
from types import ModuleType
from typing import Any, NamedTuple

from zephon.errors import DataError, ZephonError
from zephon.io.decoded import Held
from zephon.io.formats.arrow_columns import Table, documents_of, load_arrow
from zephon.io.formats.base import Documents, Shard, check_size, read_whole
from zephon.io.storage import is_local

MAGIC = b"ARROW1"
FILES = 32  # kept mapped
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_END = b"\xff\xff\xff\xff\0\0\0\0"


class _Message(NamedTuple):
    """Where a message lies, what it is, and how many rows it has."""

    begin: int
    end: int
    kind: int
    rows: int


class _Index(NamedTuple):
    """The file's bytes, its schema, messages that are no batches, batches, and how many rows come before each batch."""

    data: Any
    schema: Any
    others: list[_Message]
    batches: list[_Message]
    before: list[int]


_indexes: Held[_Index] = Held(FILES)
_whole: Held[bytes] = Held()
_tables: Held[Table] = Held()


class Arrow:
    name = "arrow"

    def read(self, shard: Shard, start: int, stop: int) -> Documents:
        """The rows of a part of the file; rows are row numbers. A row whose text is not UTF-8 is among the bad documents.

        Raises:
            DataError: the file is damaged, cut short or no Arrow IPC.
            ConfigError: pyarrow is not installed.
        """
        arrow = load_arrow("reading Arrow files")
        check_size(shard)  # also, to open a pipe would wait for ever
        rows: list[int] = []
        tables: list[Table] = []
        size = 0
        try:
            index = _indexes.get(shard.key, lambda: _index(arrow, shard), lambda _: 1)
            for number, batch in enumerate(index.batches):
                if batch.begin >= stop:
                    break
                first, last = _rows_between(batch, start, stop)
                if first < last:
                    decode = functools.partial(_decoded, arrow, index, number)
                    table = _tables.get((*shard.key, number), decode, lambda table: table.nbytes)
                    tables.append(table.slice(first, last - first))
                    rows += range(index.before[number] + first, index.before[number] + last)
                    size += (last - first) * (batch.end - batch.begin) // batch.rows
        except ZephonError:
            raise
        except (arrow.ArrowException, struct.error, OSError, ValueError) as error:
            raise DataError(
                f"{shard.path} cannot be read as Arrow IPC: {error}",
                follows="its documents would be dropped silently",
                remedy="restore the shard from its source, or write it again",
            ) from error
        return documents_of(arrow, shard, rows, tables, size)


def _rows_between(batch: _Message, start: int, stop: int) -> tuple[int, int]:
    """Row i of n begins at the (i / n)-th part of the batch's bytes."""
    length = batch.end - batch.begin
    first, last = (-(-(edge - batch.begin) * batch.rows // length) for edge in (start, stop))
    return max(first, 0), min(last, batch.rows)


def _index(arrow: ModuleType, shard: Shard) -> _Index:
    if is_local(shard.fs):
        data = arrow.memory_map(shard.path).read_buffer()
    else:
        data = arrow.py_buffer(_whole.get(shard.key, lambda: read_whole(shard), len))
    messages = _messages(memoryview(data))
    if not messages or messages[0].kind != _SCHEMA or any(message.kind == _SCHEMA for message in messages[1:]):
        raise ValueError("it does not begin with one schema")
    schema = arrow.ipc.read_schema(data[messages[0].begin : messages[0].end])
    if any(message.kind == _DICTIONARY for message in messages) and "dictionary<" not in str(schema):
        raise ValueError("it holds values of a dictionary, which none of its columns has")
    batches = [message for message in messages if message.kind == _BATCH]
    before = [0]
    for batch in batches:
        before.append(before[-1] + batch.rows)
    index = _Index(data, schema, [message for message in messages if message.kind != _BATCH], batches, before)
    for number, batch in enumerate(batches):
        if not batch.rows:  # seldom; a damaged head may say so too
            _decoded(arrow, index, number)
    return index


def _messages(data: memoryview) -> list[_Message]:
    """All messages of a file or stream. Raises ValueError where it is none, or not whole."""
    at, end = 0, len(data)
    is_file = bytes(data[:6]) == MAGIC
    if bytes(data[:4]) == b"FEA1":
        raise ValueError("it is Feather of version 1: read it with pyarrow.feather, and write it again")
    if is_file:
        if bytes(data[-6:]) != MAGIC:
            raise ValueError("it ends without its footer")
        (footer,) = struct.unpack_from("<i", data, len(data) - 10)
        at, end = 8, len(data) - 10 - footer
    messages: list[_Message] = []
    ended = False
    while at < end:
        mark, length = struct.unpack_from("<Ii", data, at)
        if mark != 0xFFFFFFFF or length < 0:
            raise ValueError(f"there is no message at byte {at}")
        if length == 0:
            at, ended = at + 8, True
            break
        message = _message(data, at, length)
        if message.end > end:
            raise ValueError(f"the message at byte {at} ends {message.end - end} bytes behind its end")
        messages.append(message)
        at = message.end
    if not is_file and not ended:
        raise ValueError("it ends without the mark of its end")
    if at != end:
        raise ValueError(f"its messages end at byte {at}, but there is data behind them")
    return messages


def _message(data: memoryview, at: int, length: int) -> _Message:
    """Reads the head of a message: a flatbuffer with version, kind, the kind's own table (rows first) and the body's length.

    The layout is that of "Encapsulated message format" in Arrow's columnar specification.
    """
    head = data[at + 8 : at + 8 + length]
    (root,) = struct.unpack_from("<I", head, 0)
    kind_at, table_at, body_at = (_field(head, root, number) for number in (1, 2, 3))
    if kind_at is None or table_at is None:
        raise ValueError(f"the message at byte {at} has no head")
    (kind,) = struct.unpack_from("<B", head, kind_at)
    (body,) = struct.unpack_from("<q", head, body_at) if body_at is not None else (0,)
    rows = 0
    if kind == _BATCH:
        (table,) = struct.unpack_from("<I", head, table_at)
        rows_at = _field(head, table_at + table, 0)
        (rows,) = struct.unpack_from("<q", head, rows_at) if rows_at is not None else (0,)
    elif kind not in (_SCHEMA, _DICTIONARY):
        raise ValueError(f"the message at byte {at} is of kind {kind}, which holds no rows")
    if body < 0 or rows < 0:
        raise ValueError(f"the message at byte {at} has a negative length")
    return _Message(at, at + 8 + length + body, kind, rows)


def _field(head: memoryview, table: int, number: int) -> int | None:
    """Where a field of a flatbuffer's table lies; None where the table leaves it out, as it has its default."""
    (back,) = struct.unpack_from("<i", head, table)
    fields = table - back
    (size,) = struct.unpack_from("<H", head, fields)
    if 4 + 2 * number >= size:
        return None
    (offset,) = struct.unpack_from("<H", head, fields + 4 + 2 * number)
    return table + offset if offset else None


def _decoded(arrow: ModuleType, index: _Index, number: int) -> Table:
    """A batch as a table, each of whose numbers is checked: Arrow ends the process where offsets lead out of a buffer."""
    batch, data = index.batches[number], index.data
    if len(index.others) == 1:
        record_batch = arrow.ipc.read_record_batch(arrow.ipc.read_message(data[batch.begin : batch.end]), index.schema)
    else:  # values of dictionaries lie in messages of their own, which only the reader of a stream takes
        needed = [*(message for message in index.others if message.begin < batch.begin), batch]
        stream = b"".join([*(bytes(data[message.begin : message.end]) for message in needed), _END])
        record_batch = arrow.ipc.open_stream(stream).read_next_batch()
    if record_batch.num_rows != batch.rows:
        raise ValueError(f"its batch {number} has {record_batch.num_rows} rows and says {batch.rows}")
    _check(arrow, record_batch)
    table: Table = arrow.Table.from_batches([record_batch])
    return table


def _check(arrow: ModuleType, batch: Any) -> None:
    """Raises ArrowInvalid where an offset leads nowhere. Text is checked document by document, when it becomes Python's."""
    batch.validate()
    raw = {arrow.string(): arrow.binary(), arrow.large_string(): arrow.large_binary()}
    for column in batch.columns:
        (column.view(raw[column.type]) if column.type in raw else column).validate(full=True)
