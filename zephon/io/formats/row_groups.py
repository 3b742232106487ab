"""Row groups of Parquet files, each decoded once for all chunks that lie in it, in bounded memory.

A file is planned by bytes, so the chunks of one row group are asked for in any order. A usual group is kept as a table in
memory. A huge one, such as a file with a single group, is decoded batch by batch into a file without a name on this machine's
disk, from which each chunk takes its rows: it costs the disk as much as it has decoded bytes, up to ``SPILLED`` in all. So are
those of a few MiB for which memory has no room left, where there is a disk: else each chunk would decode a whole group again.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from zephon.errors import ConfigError
from zephon.io.decoded import Held
from zephon.io.formats.arrow_columns import Table
from zephon.io.formats.base import Shard, check_size
from zephon.io.storage import is_local, other_size, read_range
from zephon.io.where import Range, may_hold

FILES = 32  # kept open, each with a descriptor: a dataset may have more shards than a process may have descriptors
HUGE = 64 << 20  # bytes of a decoded row group that is never kept in memory
SMALL = 4 << 20  # bytes of one that is decoded again sooner than written to disk
SPILLED = 16 << 30  # bytes of such groups on disk, of which the oldest go first
_ROWS = 1024  # decoded at a time
_JOINED = b"PAR1PAR1"  # the end of a file and the beginning of another one


class RowsRead(NamedTuple):
    """Row numbers, the parts of row groups that hold these rows, and bytes of the file that all rows of the part stand for.

    Rows of groups in which none can pass the shard's filter are not among them.
    """

    rows: list[int]
    tables: list[Table]
    size: int


class _OpenFile(NamedTuple):
    """A file and its lock: a reader may serve one thread at a time."""

    file: Any
    lock: threading.Lock


_tables: Held[Table] = Held()
_spilled: Held[Table] = Held(SPILLED)
_open_files: Held[_OpenFile] = Held(FILES)


def read_rows(shard: Shard, start: int, stop: int) -> RowsRead:
    """The rows of a part of the file.

    Raises:
        DataError: the file is not as long as it was listed.
        ConfigError: there is no room on the disk for a huge row group.
        Exception: whatever Arrow raises of a damaged file.
    """
    opened = _open_files.get(shard.key, lambda: _OpenFile(_open(shard), threading.Lock()), lambda _: 1)
    metadata = opened.file.metadata
    first, last = (edge * metadata.num_rows // shard.size for edge in (start, stop))
    rows: list[int] = []
    tables, at = [], 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        begin, end = max(first - at, 0), min(last - at, group.num_rows)
        if begin < end and (shard.where is None or may_hold(shard.where, functools.partial(_range, group))):
            rows += range(at + begin, at + end)
            tables.append(_decoded(shard, opened, number).slice(begin, end - begin))
        at += group.num_rows
    return RowsRead(rows, tables, (last - first) * shard.size // max(1, metadata.num_rows))


def _decoded(shard: Shard, opened: _OpenFile, number: int) -> Table:
    """A row group, from memory or disk if it was decoded before."""
    key, size = (*shard.key, number), opened.file.metadata.row_group(number).total_byte_size
    in_memory = functools.partial(_tables.get, key, functools.partial(_read, shard, opened, number), _bytes_of)
    if size < HUGE and (size < SMALL or _tables.takes(key, size) or _lies_in_memory(tempfile.gettempdir())):
        return in_memory()
    try:
        return _spilled.get(key, functools.partial(_spill, shard, opened, number), _bytes_of)
    except ConfigError:
        if size >= HUGE:
            raise
    return in_memory()


def _bytes_of(table: Table) -> int:
    return table.nbytes


@functools.lru_cache(maxsize=8)
def _lies_in_memory(folder: str) -> bool:
    """Whether what is written there takes memory, as on a tmpfs."""
    kinds: dict[str, str] = {}
    with contextlib.suppress(OSError), open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
        kinds = {fields[1]: fields[2] for fields in map(str.split, mounts)}
    path = os.path.realpath(folder)
    above = [mount for mount in kinds if path == mount or path.startswith(f"{mount.rstrip('/')}/")]
    return kinds.get(max(above, key=len, default=""), "") in ("tmpfs", "ramfs")


def _range(group: Any, name: str) -> Range | None:
    """What the statistics of a row group say of a column's values; None where they say nothing, or all are missing."""
    for column in map(group.column, range(group.num_columns)):
        if column.path_in_schema == name and column.statistics is not None and column.statistics.has_min_max:
            return Range(column.statistics.min, column.statistics.max)
    return None


def _read(shard: Shard, opened: _OpenFile, number: int) -> Table:
    with opened.lock:
        table: Table = opened.file.read_row_group(number)
        _check_end(shard, opened.file.metadata, number)
        return table


def _spill(shard: Shard, opened: _OpenFile, number: int) -> Table:
    """A row group as a table that lies on disk: its pages are in memory only as long as there is room."""
    import pyarrow

    folder = tempfile.gettempdir()
    try:
        with opened.lock, tempfile.TemporaryFile(dir=folder) as file:
            batches: Iterator[Any] = opened.file.iter_batches(_ROWS, row_groups=[number])
            with pyarrow.ipc.new_file(file, opened.file.schema_arrow) as writer:
                for batch in batches:
                    writer.write_batch(batch)
            file.flush()
            _check_end(shard, opened.file.metadata, number)
            # The map outlives the descriptor and the name.
            mapped = pyarrow.memory_map(f"/proc/self/fd/{file.fileno()}")
            table: Table = pyarrow.ipc.open_file(mapped).read_all()
            return table
    except OSError as error:
        if error.errno is None:  # Arrow's own, about the shard
            raise
        size = opened.file.metadata.row_group(number).total_byte_size
        raise ConfigError(
            f"{shard.path}: row group {number} of {size >> 20} MiB is decoded to {folder}, which fails: {error}",
            remedy="name a folder with room in TMPDIR, or write the files with row groups of a few MiB",
        ) from error


def _open(shard: Shard) -> Any:
    from pyarrow import parquet

    if is_local(shard.fs):
        check_size(shard)  # also, to open a pipe would wait for ever
        return parquet.ParquetFile(shard.path, memory_map=True, page_checksum_verification=True)
    file = shard.fs.open(shard.path, "rb")
    size = file.seek(0, os.SEEK_END)
    if size != shard.size:
        file.close()
        raise other_size(shard.path, f"has {size} bytes", shard.size)
    return parquet.ParquetFile(file, pre_buffer=True, page_checksum_verification=True)


def _check_end(shard: Shard, metadata: Any, number: int) -> None:
    """Raises ValueError where another file lies before this one: its footer is what was read, and the other's rows are missing.

    Asked for the last row group alone, once it is decoded: Arrow ends the process where a column's numbers are damaged.
    """
    if number < metadata.num_row_groups - 1:
        return
    group = metadata.row_group(number)
    end = 0
    for column in map(group.column, range(group.num_columns)):
        pages = (column.data_page_offset, column.dictionary_page_offset)
        end = max(end, min(page for page in pages if page is not None) + column.total_compressed_size)
    between = read_range(shard.fs, shard.path, end, shard.size) if end < shard.size else b""
    if _JOINED in between:
        raise ValueError(f"two files were joined at byte {end + between.index(_JOINED) + len(_JOINED) // 2}")
