"""What exists: datasets, shards, formats, storage. No order and no state."""

from zephon.io.dataset import Dataset, InMemoryShard
from zephon.io.reader import read

__all__ = ["Dataset", "InMemoryShard", "read"]
