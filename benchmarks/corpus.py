"""Text to measure on, made from what every Python installation has, so that no network and no data set is needed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import orjson

from zephon.io import Dataset, read
from zephon.types import Chunk, Piece

_SIZES = (2100, 3900, 5200, 2800, 4400, 6000, 3300)


def texts() -> Iterator[str]:
    """The built-in documents and sources in pieces of about 2 to 6 KB, cut at line ends."""
    turn = 0
    for name in ("docs", "code"):
        dataset = Dataset.from_path(name, f"stdlib://{name}")
        for shard, size in enumerate(dataset.sizes.tolist()):
            try:
                columns = read(dataset, Chunk(0, 0, 0, (Piece(shard, 0, size),)))
            except ValueError:
                continue  # a few sources of the standard library are not UTF-8
            for document in columns.dicts():
                text, at = document["text"], 0
                while at < len(text):
                    end = text.find("\n", at + _SIZES[turn % len(_SIZES)]) + 1 or len(text)
                    yield text[at:end]
                    at, turn = end, turn + 1


def write_jsonl(folder: Path, megabytes: float, files: int = 4) -> Path:
    """JSON Lines shards of at least this size together; the built-in text is repeated as often as that takes."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = itertools.cycle([orjson.dumps({"text": text, "id": number}) + b"\n" for number, text in enumerate(texts())])
    for number in range(files):
        written = 0
        with open(folder / f"part-{number:05}.jsonl", "wb") as out:
            while written < megabytes * 1e6 / files:
                written += out.write(next(lines))
    return folder
