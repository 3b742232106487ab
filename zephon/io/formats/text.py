"""Plain text: one document a file, in the field ``text``. A file belongs to the range that holds its first byte."""

from __future__ import annotations

from zephon.errors import DataError
from zephon.io.formats.base import Documents, Shard, bad_document
from zephon.io.storage import read_range


class Text:
    name = "text"

    def read(self, shard: Shard, start: int, stop: int) -> Documents:
        """One document, row 0; among the bad ones where it is not UTF-8. Raises DataError for a file shorter than listed."""
        if start > 0:
            return Documents([], None, {"text": []})
        data = read_range(shard.fs, shard.path, 0, shard.size)
        if len(data) < shard.size:
            raise DataError(
                f"{shard.path} has {len(data)} bytes, but the listing said {shard.size}",
                follows="a part of the document would be dropped silently",
                remedy="restore the file, or start a new run on the data as it is now",
            )
        try:
            return Documents([0], None, {"text": [data.decode("utf-8-sig")]})
        except UnicodeDecodeError as cause:
            error = bad_document(
                shard,
                0,
                "a file is not UTF-8",
                f"{shard.path} is not UTF-8: {cause}",
                follows="the document would be dropped or garbled",
                remedy="convert the file to UTF-8, keep it out of the dataset",
            )
            return Documents([], None, {"text": []}, (error,))
