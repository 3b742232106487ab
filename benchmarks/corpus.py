"""Text to measure on, made from what every Python installation has, so that no network and no data set is needed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import orjson

from zephon.io import Dataset, read
from zephon.types import Chunk, ShardRange

_SIZES = (2100, 3900, 5200, 2800, 4400, 6000, 3300)


def texts(*names: str) -> Iterator[str]:
    """The built-in documents and sources (or only ``names`` of them) in pieces of about 2 to 6 KB, cut at line ends."""
    turn = 0
    for name in names or ("docs", "code"):
        dataset = Dataset.from_path(name, f"stdlib://{name}")
        for shard, size in enumerate(dataset.sizes.tolist()):
            try:
                columns = read(dataset, Chunk(0, 0, 0, (ShardRange(shard, 0, size),)))
            except ValueError:
                continue  # a few sources of the standard library are not UTF-8
            for document in columns.dicts():
                text, at = document["text"], 0
                while at < len(text):
                    end = text.find("\n", at + _SIZES[turn % len(_SIZES)]) + 1 or len(text)
                    yield text[at:end]
                    at, turn = end, turn + 1


def write_jsonl(folder: Path, megabytes: float, files: int = 4, documents: Iterator[str] | None = None) -> Path:
    """JSON Lines shards of at least this size together; by default the built-in text, repeated as often as that takes."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = (
        orjson.dumps({"text": text, "id": number}) + b"\n"
        for number, text in enumerate(documents or itertools.cycle(list(texts())))
    )
    for number in range(files):
        written = 0
        with open(folder / f"part-{number:05}.jsonl", "wb") as out:
            while written < megabytes * 1e6 / files:
                written += out.write(next(lines))
    return folder


def write_many(folder: Path, files: int) -> Path:
    """So many small JSON Lines shards, hard links to a few: what counts is listing and planning them."""
    folder.mkdir(parents=True)
    line = itertools.cycle([orjson.dumps({"text": text}) + b"\n" for text in itertools.islice(texts(), 64)])
    for number in range(min(files, 64)):
        (folder / f"{number:06}.jsonl").write_bytes(next(line))
    for number in range(64, files):
        os.link(folder / f"{number % 64:06}.jsonl", folder / f"{number:06}.jsonl")
    return folder


def write_tokens(folder: Path, text: Path, millions: float) -> Path:
    """The text's GPT-2 ids as a Parquet list column."""
    import pyarrow
    from pyarrow import parquet

    from zephon.ops.tokenizers import load_tokenizer

    folder.mkdir(parents=True)
    tokenizer, written = load_tokenizer("gpt2"), 0
    kind = pyarrow.list_(pyarrow.int32())
    with parquet.ParquetWriter(folder / "part.parquet", pyarrow.schema([("input_ids", kind)]), compression="NONE") as out:
        for file in itertools.cycle(sorted(text.glob("*.jsonl"))):
            with open(file, "rb") as lines:
                while batch := [orjson.loads(line)["text"] for line in itertools.islice(lines, 500)]:
                    ids = tokenizer.encode(batch)
                    column = pyarrow.ListArray.from_arrays(ids.offsets.astype("int32"), ids.values.view("int32"))
                    out.write_table(pyarrow.table({"input_ids": column.cast(kind)}))
                    written += len(ids.values)
                    if written >= millions * 1e6:
                        return folder
    raise AssertionError("the cycle over files is endless")


def write_row_groups(folder: Path, text: Path, megabytes: int) -> Path:
    """The texts of JSON Lines files as Parquet, each file one row group of about this size."""
    import pyarrow
    from pyarrow import parquet

    folder.mkdir(parents=True)
    for file in sorted(text.glob("*.jsonl")):
        once = [orjson.loads(line)["text"] for line in file.read_bytes().splitlines()]
        size = sum(map(len, once))
        rows = once * max(1, round(megabytes * 1e6 / size))
        parquet.write_table(
            pyarrow.table({"text": rows}), folder / f"{file.stem}.parquet", row_group_size=len(rows), use_dictionary=False
        )
    return folder
