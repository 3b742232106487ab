"""Plain text: one document a file, in the field ``text``. A file belongs to the range that holds its first byte."""

from __future__ import annotations

from zephon.io.formats.base import Documents, Shard, bad_document, not_text, read_whole


class Text:
    name = "text"

    def read(self, shard: Shard, start: int, stop: int) -> Documents:
        """One document, row 0; among the bad ones where it is no UTF-8. Raises DataError for a file not as long as listed."""
        if start > 0:
            return Documents([], None, {"text": []})
        data = read_whole(shard)
        if (what := not_text(data[:64])) is not None:
            error = bad_document(shard, 0, "a file is no text", f"{shard.path} is {what}", remedy="fetch or convert the file")
            return Documents([], None, {"text": []}, (error,), shard.size)
        try:
            return Documents([0], None, {"text": [data.decode("utf-8-sig")]}, (), shard.size)
        except UnicodeDecodeError as cause:
            error = bad_document(
                shard,
                0,
                "a file is not UTF-8",
                f"{shard.path} is not UTF-8: {cause}",
                follows="the document would be dropped or garbled",
                remedy="convert the file to UTF-8, keep it out of the dataset",
            )
            return Documents([], None, {"text": []}, (error,), shard.size)
