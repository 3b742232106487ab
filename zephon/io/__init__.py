"""What exists: datasets, shards, formats, storage. No order and no state."""

from zephon.io.dataset import Dataset
from zephon.io.in_memory import InMemoryShard
from zephon.io.reader import read

__all__ = ["Dataset", "InMemoryShard", "read"]
