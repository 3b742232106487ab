"""A dataset: a named, ordered list of shards with one format, known from its listing alone."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zephon.errors import ConfigError, NotFound, address_of
from zephon.io.formats.base import Format, detect, format_named
from zephon.io.formats.memory import row_sizes
from zephon.io.listing import list_files, unusable
from zephon.types import Address, ByteAddress, IntArray


@dataclasses.dataclass(frozen=True)
class InMemoryShard:
    """Rows that are already here: dicts of fields. For tests and small data."""

    rows: Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Frozen. Made by `from_path` or `from_dict`.

    Args:
        name: how mixtures, errors and reports call it.
        format: how its shards are read.
        shards: names of the shards, in order.
        sizes: int64[shards], each shard's size in the format's units.
        root: path of the directory that shard names are relative to.
        fs: the fsspec file system, or None for data in memory.
        memory: the rows of in-memory shards, by shard.
    """

    name: str
    format: Format
    shards: tuple[str, ...]
    sizes: IntArray
    root: str = ""
    fs: Any = None
    memory: tuple[Sequence[Mapping[str, Any]], ...] = ()

    @staticmethod
    def from_path(name: str, path: str, *, fmt: str | None = None) -> Dataset:
        """A directory, a file, a glob, or a URL of any fsspec scheme; ``stdlib://docs`` and ``stdlib://code`` are built in.

        Raises:
            NotFound: nothing is there.
            ConfigError: unsupported format, unknown scheme, several formats, or no shard with any content.
        """
        if path.startswith("stdlib://"):
            from zephon.io.builtin import stdlib

            return stdlib(name, path)
        try:
            fs, root, names, sizes = list_files(path)
        except NotFound as error:
            raise NotFound(f"dataset {name!r}: {error.what}", follows=error.follows, remedy=error.remedy) from error
        detected, kept = (fmt, None) if fmt is not None else detect(names, path)
        chosen = format_named(detected)
        if kept is not None or 0 in sizes:
            filled = [i for i in (range(len(names)) if kept is None else kept) if sizes[i]]
            names, sizes = [names[i] for i in filled], [sizes[i] for i in filled]
        if not names:
            raise ConfigError(
                f"dataset {name!r}: {path!r} holds no {chosen.name} shard with any content",
                follows="its share of the mixture could never be filled",
                remedy="check that the files were written to the end, or leave the dataset out",
            )
        try:
            "".join(names).encode()
        except UnicodeEncodeError as error:
            found = next(each for each in names if any("\ud800" <= mark <= "\udfff" for mark in each))
            raise unusable(path, f"the name of a file is not UTF-8: {found!r}") from error
        return Dataset(name, chosen, tuple(names), np.array(sizes, np.int64), root, fs)

    @staticmethod
    def from_dict(name: str, shards: Mapping[str, InMemoryShard]) -> Dataset:
        """In-memory shards by id, in the order of their ids. Raises ConfigError when there is no row."""
        rows = {shard_id: shards[shard_id].rows for shard_id in sorted(shards) if len(shards[shard_id].rows)}
        if not rows:
            raise ConfigError(
                f"dataset {name!r} has no row",
                follows="its share of the mixture could never be filled",
                remedy="give it at least one row, or leave the dataset out",
            )
        sizes = np.array([int(row_sizes(shard).sum()) for shard in rows.values()], np.int64)
        return Dataset(name, format_named("memory"), tuple(rows), sizes, memory=tuple(rows.values()))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    @functools.cached_property
    def size(self) -> int:
        """Total size in the format's units."""
        return int(self.sizes.sum())

    @functools.cached_property
    def starts(self) -> IntArray:
        """int64[shards + 1]: where each shard begins when all are laid end to end."""
        starts = np.zeros(len(self.sizes) + 1, np.int64)
        np.cumsum(self.sizes, out=starts[1:])
        return starts

    @functools.cached_property
    def identity(self) -> str:
        """SHA-256 of format, shard names and sizes: what the plan is made from. The place of the data is not part of it."""
        digest = hashlib.sha256(f"{self.format.name}\n".encode())
        lines = [f"{size} {shard}\n" for shard, size in zip(self.shards, self.sizes.tolist(), strict=True)]
        digest.update("".join(lines).encode())
        return digest.hexdigest()

    def address(self, shard: int, row: int) -> Address:
        kind = ByteAddress if self.format.name == "jsonl" else Address
        return kind(self.name, self.shards[shard], row)

    def note_address(self, error: BaseException, more: str = "") -> None:
        """Writes the address of the document that an error is about into its notes, where it is about one."""
        about = address_of(error)
        if about is not None:
            error.add_note(f"address: {self.address(about.shard, about.row)}{more}")

    def path(self, shard: int) -> str:
        return f"{self.root.rstrip('/')}/{self.shards[shard]}" if self.root else self.shards[shard]
