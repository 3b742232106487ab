"""Parquet: a document a row. Shards are planned by their size in bytes, and a range of bytes is that part of the rows.

`zephon.io.formats.arrow_columns` says what the rows become.
"""

from __future__ import annotations

from zephon.errors import DataError, ZephonError
from zephon.io.formats.arrow_columns import documents_of, load_arrow
from zephon.io.formats.base import Documents, Shard
from zephon.io.formats.row_groups import read_rows


class Parquet:
    name = "parquet"

    def read(self, shard: Shard, start: int, stop: int) -> Documents:
        """The rows of a part of the file; rows are row numbers. A row whose text is not UTF-8 is among the bad documents.

        Raises:
            DataError: the file is damaged or not Parquet.
            ConfigError: pyarrow is not installed.
        """
        arrow = load_arrow("reading Parquet")
        try:
            rows, tables, size = read_rows(shard, start, stop)
        except ZephonError:
            raise
        except (arrow.ArrowException, OSError, ValueError) as error:  # Arrow does not check names of columns itself
            raise DataError(
                f"{shard.path} cannot be read as Parquet: {error}",
                follows="its documents would be dropped silently",
                remedy="restore the shard from its source",
            ) from error
        return documents_of(arrow, shard, rows, tables, size)
