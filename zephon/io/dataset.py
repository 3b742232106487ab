"""A dataset: a named, ordered list of shards with one format, known from its listing alone."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import hashlib
import html
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from zephon.errors import ConfigError, DataError, NotFound, address_of
from zephon.io import builtin
from zephon.io.field import rename
from zephon.io.filesystem import FileSystem
from zephon.io.formats.base import Format, Shard, format_named, refuse_array
from zephon.io.hub import at_commit, commit_of, is_hub
from zephon.io.in_memory import InMemoryShard
from zephon.io.joined_fields import is_template, join_fields, parts_of
from zephon.io.listing import list_files, unusable
from zephon.io.saved import beside_saved
from zephon.io.selection import Selection, select
from zephon.io.storage import LOCAL
from zephon.io.suffixes import detect, is_compressed, is_json, may_be_empty, refuse_skipped
from zephon.io.watch import Watch, noted
from zephon.types import Address, ByteAddress, Columns, IntArray, Json

HEAD_BYTES = 1 << 16  # that `Dataset.head` reads first


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Frozen. Made by `from_path` or `from_dict`.

    Args:
        name: how mixtures, errors and reports call it.
        format: how its shards are read.
        shards: names of the shards, in order.
        sizes: int64[shards], each shard's size in the format's units.
        root: path of the directory that shard names are relative to.
        fs: the file system, or None for data in memory.
        memory: the in-memory shards themselves; empty for files.
        files: what stands for the real file behind each shard, whatever its name here; empty for data in memory.
        renames: fields that get another name at reading, old (or a template of several) to new.
        selection: which of the documents are used.
        revision: the commit that was listed, of a store that has some; else empty.
    """

    name: str
    format: Format
    shards: tuple[str, ...]
    sizes: IntArray
    root: str = ""
    fs: FileSystem | None = None
    memory: tuple[InMemoryShard, ...] = ()
    files: tuple[Hashable, ...] = dataclasses.field(default=(), repr=False)
    renames: Mapping[str, str] = dataclasses.field(default_factory=dict)
    selection: Selection = dataclasses.field(default_factory=Selection)
    revision: str = ""

    @staticmethod
    def from_path(name: str, path: str, *, fmt: str | None = None) -> Dataset:
        """The data that lies at a path.

        Args:
            name: how mixtures, errors and reports call it.
            path: a directory, a file, a glob, or a URL of any fsspec scheme; ``stdlib://docs`` and ``stdlib://code`` are
                built in.
            fmt: the format, where the files' names do not say it.

        Raises:
            NotFound: nothing is there.
            ConfigError: an empty path, unsupported format, unknown scheme, several formats, no shard with any content, or a
                shard of no bytes in a format whose shards always have some.
        """
        if not path.strip():
            raise ConfigError(
                f"dataset {name!r}: the path is empty",
                follows="whatever lies in the current directory would be trained on",
                remedy='name a file, a folder, a glob or a URL; the current directory is "."',
            )
        if path.startswith("stdlib://"):
            return _built_in(name, path)
        revision = commit_of(path) if is_hub(path) else ""
        try:
            with Watch(), noted(f"the listing of {path}"):
                fs, root, names, sizes, skipped, files = list_files(at_commit(path, revision) if revision else path)
        except NotFound as error:
            raise NotFound(f"dataset {name!r}: {error.what}", follows=error.follows, remedy=error.remedy) from error
        if beside := beside_saved(fs, root, names, path):
            shards = [i for i, file in enumerate(names) if file not in beside]
            names, sizes, files = [names[i] for i in shards], [sizes[i] for i in shards], [files[i] for i in shards]
        detected, kept = (fmt, None) if fmt is not None else detect(names, path)
        chosen = format_named(detected)
        refuse_skipped(skipped, chosen.name, path)
        _refuse_same_files(name, names, files)
        if kept is not None or 0 in sizes:
            of_format = range(len(names)) if kept is None else kept
            _refuse_empty(name, chosen.name, [names[i] for i in of_format if not sizes[i]])
            filled = [i for i in of_format if sizes[i]]
            names, sizes, files = [names[i] for i in filled], [sizes[i] for i in filled], [files[i] for i in filled]
        if not names:
            raise ConfigError(
                f"dataset {name!r}: {path!r} holds no {chosen.name} shard with any content",
                follows="its share of the mixture could never be filled",
                remedy="check that the files were written to the end, or remove the dataset",
            )
        if is_json(names[0]):
            refuse_array(fs, f"{root.rstrip('/')}/{names[0]}" if root else names[0])
        try:
            "".join(names).encode()
        except UnicodeEncodeError as error:
            broken = next(file for file in names if any("\ud800" <= mark <= "\udfff" for mark in file))
            raise unusable(path, f"the name of a file is not UTF-8: {broken!r}") from error
        return Dataset(name, chosen, tuple(names), np.array(sizes, np.int64), root, fs, files=tuple(files), revision=revision)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "files": ()}  # asked for where datasets are put together, and not by a reader

    @staticmethod
    def from_dict(name: str, shards: Mapping[str, InMemoryShard]) -> Dataset:
        """Data that is already in memory.

        Args:
            name: how mixtures, errors and reports call it.
            shards: by id; their order is that of the ids.

        Raises:
            ConfigError: there is no row.
        """
        filled = {shard_id: shards[shard_id] for shard_id in sorted(shards) if len(shards[shard_id].rows)}
        if not filled:
            raise ConfigError(
                f"dataset {name!r} has no row",
                follows="its share of the mixture could never be filled",
                remedy="give it at least one row, or remove the dataset",
            )
        sizes = np.array([shard.size for shard in filled.values()], np.int64)
        return Dataset(name, format_named("memory"), tuple(filled), sizes, memory=tuple(filled.values()))

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}: {self.format.name}, {len(self.shards):,} shards, {self.size:,} bytes)"

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"

    def head(self, count: int = 5) -> list[Json]:
        """The first documents in stored order, each as a dict of its fields.

        Args:
            count: how many, at most.
        """
        documents: list[Json] = []
        for number, size in enumerate(self.sizes.tolist()):
            start, step = 0, HEAD_BYTES
            while start < size and len(documents) < count:
                part = self.format.read(self.shard(number), start, min(start + step, size))
                if part.bad:
                    self.note_address(part.bad[0])
                    raise part.bad[0]
                shards = np.full(len(part.rows), number)
                columns = Columns(0, shards, np.array(part.rows, np.int64), part.records, dict(part.fields))
                documents += self._addressed(columns).dicts()
                start, step = start + step, 2 * step
        return documents[:count]

    def _addressed(self, columns: Columns) -> Columns:
        try:
            return self.chosen(columns, None)
        except DataError as error:
            self.note_address(error)
            raise

    def chosen(self, columns: Columns, bad: list[DataError] | None) -> Columns:
        """Of documents that were read, those that are selected, with fields under their new names.

        Args:
            columns: as they are stored.
            bad: takes the errors about single documents; without it the first of them is raised.
        """
        if self.selection:
            columns = select(columns, self.selection, self.shards, bad)
        rename(columns, {old: new for old, new in self.renames.items() if not is_template(old)})
        for old, new in self.renames.items():
            if is_template(old):
                columns = join_fields(columns, old, new, bad)
        return columns

    def renamed(self, fields: Mapping[str, str]) -> Dataset:
        """The same data, with fields under other names, or several fields joined to one.

        Args:
            fields: old name, dotted for nested ones, to new name: ``{"content": "text"}``; or a template of several:
                ``{"{title}\\n\\n{body}": "text"}``.
        """
        for old in filter(is_template, fields):
            parts_of(old)
        if len(set(fields.values())) < len(fields):
            raise ConfigError(
                f"dataset {self.name!r}: two fields would be renamed to one name, {dict(fields)}",
                follows="one of them would hide the other",
                remedy="give each a name of its own",
            )
        return dataclasses.replace(self, renames=dict(fields))

    def select(
        self, *, shards: str | None = None, where: str | None = None, fraction: tuple[float, float] | None = None
    ) -> Dataset:
        """Some of the data; the rest does not belong to the dataset, and is counted nowhere.

        Args:
            shards: a glob that the names of shards, below the dataset's path, match: ``"web/*-0000?.parquet"``.
            where: a filter on fields, under their stored names: ``"lang == 'en' and score > 0.8"``; see docs/data.md.
            fraction: a part of the documents by a hash of their names, ``(0, 0.9)`` for the first nine tenths.

        Raises:
            ConfigError: a filter or fraction that is none, or no shard that matches.
        """
        kept = [i for i, shard in enumerate(self.shards) if shards is None or fnmatch.fnmatchcase(shard, shards)]
        if not kept:
            raise ConfigError(
                f"dataset {self.name!r}: none of its {len(self.shards)} shards matches shards={shards!r}; "
                f"the first is {self.shards[0]!r}",
                follows="its share of the mixture could never be filled",
                remedy="write a glob of names below the dataset's path, where * also stands for /",
            )
        return dataclasses.replace(
            self,
            shards=tuple(self.shards[i] for i in kept),
            sizes=self.sizes[kept],
            memory=tuple(self.memory[i] for i in kept) if self.memory else (),
            files=tuple(self.files[i] for i in kept) if self.files else (),
            selection=Selection(where, None if fraction is None else (float(fraction[0]), float(fraction[1]))),
        )

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
    def reads_anywhere(self) -> bool:
        """Whether a short range costs what it is long, wherever it lies: not where a shard or row group is decoded whole."""
        return self.format.name in ("jsonl", "memory", "text") and not any(map(is_compressed, self.shards))

    @functools.cached_property
    def identity(self) -> str:
        """SHA-256 of format, shard names, sizes, renamed fields and selection. The place of the data is not part of it."""
        digest = hashlib.sha256(f"{self.format.name}\n".encode())
        lines = [f"{size} {shard}\n" for shard, size in zip(self.shards, self.sizes.tolist(), strict=True)]
        lines += [f"renamed {old!r} {new!r}\n" for old, new in sorted(self.renames.items())]
        lines += self.selection.lines()
        lines += [f"revision {self.revision}\n"] if self.revision else []
        digest.update("".join(lines).encode())
        return digest.hexdigest()

    @functools.cached_property
    def listing(self) -> object:
        """A token of this listing: a later one, perhaps of other data, has another token."""
        return object()

    def shard(self, number: int) -> Shard:
        """The shard with this ``number``, as its format sees it."""
        memory = self.memory[number] if self.memory else None
        fs = LOCAL if self.fs is None else self.fs
        where = self.selection.where
        return Shard(number, self.path(number), int(self.sizes[number]), self.listing, fs, memory, where)

    def address(self, shard: int, row: int) -> Address:
        """The name of a ``row`` of the ``shard`` with this number."""
        kind = ByteAddress if self.format.name == "jsonl" else Address
        return kind(self.name, self.shards[shard], row)

    def note_address(self, error: BaseException, more: str = "") -> None:
        """Writes the address of the document that an error is about, and ``more``, into its notes, where it has an address."""
        about = address_of(error)
        if about is not None:
            renamed = "".join(f"; field {old!r} is read as {new!r}" for old, new in self.renames.items())
            error.add_note(f"address: {self.address(about.shard, about.row)}{renamed}{more}")

    def path(self, shard: int) -> str:
        """Where the ``shard`` with this number lies."""
        return f"{self.root.rstrip('/')}/{self.shards[shard]}" if self.root else self.shards[shard]


def _refuse_same_files(dataset: str, names: Sequence[str], files: Sequence[Hashable]) -> None:
    if len(set(files)) == len(files):
        return
    first: dict[Hashable, str] = {}
    for name, file in zip(names, files, strict=True):
        if file in first:
            raise ConfigError(
                f"dataset {dataset!r}: {first[file]!r} and {name!r} are the same file",
                follows="its documents would be trained on several times, unseen",
                remedy="remove one of the names, or point at the others with a glob",
            )
        first[file] = name


def _refuse_empty(dataset: str, fmt: str, empty: list[str]) -> None:
    broken = [name for name in empty if not may_be_empty(fmt, name)]
    if broken:
        more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        raise ConfigError(
            f"dataset {dataset!r}: shard {broken[0]!r}{more} has no bytes, so it is no {fmt} file",
            follows="its documents would be dropped silently",
            remedy="write the shard again, or remove the file",
        )


def _built_in(name: str, url: str) -> Dataset:
    data = builtin.open_url(url)
    if isinstance(data, builtin.Files):
        return Dataset(name, format_named("text"), data.names, np.array(data.sizes, np.int64), data.root, data.fs)
    return Dataset.from_dict(name, data)
