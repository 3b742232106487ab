"""Plain text: one document a file, in the field ``text``. A file belongs to the range that holds its first byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zephon.errors import DataError
from zephon.io.formats.base import Documents, bad_document
from zephon.io.storage import read_range

if TYPE_CHECKING:
    from zephon.io.dataset import Dataset


class Text:
    name = "text"

    def read(self, dataset: Dataset, shard: int, start: int, stop: int) -> Documents:
        """One document, row 0; among the bad ones where it is not UTF-8. Raises DataError for a file shorter than listed."""
        if start > 0:
            return Documents([], None, {"text": []})
        path, size = dataset.path(shard), int(dataset.sizes[shard])
        data = read_range(dataset.fs, path, 0, size)
        if len(data) < size:
            raise DataError(
                f"{path} has {len(data)} bytes, but the listing said {size}",
                follows="a part of the document would be lost without a word",
                remedy="restore the file, or start a new run on the data as it is now",
            )
        try:
            return Documents([0], None, {"text": [data.decode("utf-8-sig")]})
        except UnicodeDecodeError as cause:
            error = bad_document(
                (shard, 0),
                "a file is not UTF-8",
                f"{path} is not UTF-8: {cause}",
                follows="the document would be left out or garbled",
                remedy="convert the file to UTF-8, keep it out of the dataset",
            )
            return Documents([], None, {"text": []}, (error,))
