"""What a file's name says: its format, or that it looks like data which no format here reads."""

from __future__ import annotations

from zephon.errors import ConfigError

SUFFIXES = {
    ".jsonl": "jsonl",
    ".jsonl.gz": "jsonl",
    ".jsonl.zst": "jsonl",
    ".jsonl.zstd": "jsonl",
    ".ndjson": "jsonl",
    ".ndjson.gz": "jsonl",
    ".ndjson.zst": "jsonl",
    ".ndjson.zstd": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".mds": "mds",
    ".mds.zst": "mds",
    ".mds.zstd": "mds",
    ".tar": "webdataset",
    ".txt": "text",
    ".md": "text",
    ".rst": "text",
    ".py": "text",
}


_COMPRESSED = ("gz", "zst", "zstd")
_COMPRESSED_SUFFIXES = tuple(f".{suffix}" for suffix in _COMPRESSED)
_PACKED = {*_COMPRESSED, "bz2", "xz", "lzma", "lz4", "br", "snappy", "sz", "zip", "7z", "z", "tgz", "tbz2", "txz"}
_UNFINISHED = {"part", "partial", "incomplete", "tmp", "download", "crdownload"}
_TABLES = {"csv": "CSV", "tsv": "TSV", "xlsx": "Excel", "xls": "Excel", "ods": "OpenDocument"}  # of programs that people edit
_DATA = {*_TABLES, "orc", "avro", "npy", "npz", "lance", "h5", "hdf5", "tfrecord", "warc"}
_MAY_BE_EMPTY = ("jsonl", "text")  # what has a head, a foot or a mark of its end is never a file without a byte


def may_be_empty(fmt: str, name: str) -> bool:
    """Whether a file without a byte is a whole shard with no document, and not one whose writing failed."""
    return fmt in _MAY_BE_EMPTY and name.rpartition(".")[2].lower() not in _COMPRESSED


def is_compressed(name: str) -> bool:
    """Whether a shard of this name must be decoded from its beginning."""
    return name.lower().endswith(_COMPRESSED_SUFFIXES)


def detect(names: list[str], where: str) -> tuple[str, list[int] | None]:
    """The one format of these files, and the indexes of those that are of it; None for all of them.

    Raises:
        ConfigError: no file has a known suffix, files of two formats lie side by side, or some that look like data are of none.
    """
    usual = _suffix(names[0])
    if (only := _format_of(usual)) is not None and "\0".join([*names, ""]).count(f".{usual}\0") == len(names):
        return only, None  # nearly always, and there may be very many; no name holds a zero
    suffixes = [_suffix(name) for name in names]
    formats = {suffix: _format_of(suffix) for suffix in suffixes}
    examples = {fmt: names[suffixes.index(suffix)] for suffix, fmt in reversed(formats.items()) if fmt is not None}
    if not examples:
        if as_json := [i for i, name in enumerate(names) if is_json(name)]:
            refuse_unread([name for name in names if not is_json(name)], where)
            return "jsonl", as_json  # so are C4 and many others named
        for name in names:
            refuse_tables(_kind(name), repr(where) if where.endswith(name) else f"{where!r}: {name!r}")
        raise ConfigError(
            f"{where!r}: no file has a known suffix ({', '.join(SUFFIXES)})",
            remedy="name the format with fmt=...",
        )
    if len(examples) > 1:
        listed = ", ".join(f"{fmt} ({example})" for fmt, example in sorted(examples.items()))
        raise ConfigError(
            f"{where!r} holds files of several formats: {listed}",
            follows="some of them would be dropped silently",
            remedy="point at one of them with a glob, or name the format with fmt=...",
        )
    (fmt,) = examples
    if None not in formats.values():
        return fmt, None
    refuse_unread([name for name, suffix in zip(names, suffixes, strict=True) if formats[suffix] is None], where)
    return fmt, [i for i, suffix in enumerate(suffixes) if formats[suffix] is not None]


def is_json(name: str) -> bool:
    """Whether a name says JSON, and not how many documents: it holds JSON Lines, or is refused when it is read."""
    return _kind(name) == "json"


def refuse_tables(kind: str, what: str) -> None:
    """Raises ConfigError where ``kind`` is that of a spreadsheet's tables, which are no training format."""
    program = _TABLES.get(kind.lower())
    if program is not None:
        first = "" if program in ("CSV", "TSV") else "save the sheet as CSV, and "
        read = "read_csv('FILE', parse_options=csv.ParseOptions(delimiter='\\t'))" if program == "TSV" else "read_csv('FILE')"
        script = f"from pyarrow import csv, parquet; parquet.write_table(csv.{read}, 'FILE.parquet')"
        raise ConfigError(
            f"{what} is {program}, which is no training format",
            follows="what is quoted, empty or a number in it would be guessed, and could differ between shards",
            remedy=f'{first}convert it once: python -c "{script}"',
        )


def refuse_unread(names: list[str], where: str, why: str = "is read by no format here") -> None:
    """Raises ConfigError where one of these files, which nobody would read, looks like data."""
    unread = [name for name in names if looks_like_data(name)]
    if unread:
        more = f" and {len(unread) - 1} more" if len(unread) > 1 else ""
        raise ConfigError(
            f"{where!r} holds {unread[0]!r}{more}, which looks like data and {why}",
            follows="its documents would be dropped silently",
            remedy=f"move it away, convert it ({', '.join(SUFFIXES)}), or point at the other files with a glob",
        )


def refuse_skipped(names: list[str], fmt: str, where: str) -> None:
    """As `refuse_unread` for files that are hidden. Notes and programs in a folder such as ``.git`` are no documents."""
    hidden = [name for name in names if name.startswith(".") or "/." in name]
    notes = {name for name in names if _format_of(_suffix(name)) == "text" and (fmt != "text" or name in hidden)}
    why = "is skipped, since it or its folder begins with '.' or '_'"
    refuse_unread([name for name in names if name not in notes], where, why)


def looks_like_data(name: str) -> bool:
    """Whether a file's name says that it holds documents: in any format, packed in any way, or not yet written to its end."""
    parts = name.rpartition("/")[2].lower().split(".")[1:]
    packed = False
    while parts and (parts[-1] in _PACKED or parts[-1] in _UNFINISHED):
        packed = parts.pop() in _PACKED
    if not parts:
        return packed
    return parts[-1] in _DATA or f".{parts[-1]}" in SUFFIXES or (packed and parts[-1] in ("json", "xml"))


def _suffix(name: str) -> str:
    """What a file's name ends with, two parts of it where the last one says how it is compressed."""
    stem, _, suffix = name.rpartition(".")
    return f"{stem.rpartition('.')[2]}.{suffix}" if suffix.lower() in _COMPRESSED else suffix


def _kind(name: str) -> str:
    """The last part of a name, without how it is compressed."""
    return _suffix(name).partition(".")[0].lower()


def _format_of(suffix: str) -> str | None:
    return SUFFIXES.get(f".{suffix.lower()}")
