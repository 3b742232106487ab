"""What is in each shard, by SHA-256: for datasets whose names and sizes may stay the same while their content changes.

Each file is read once. Its hash is kept below ``~/.cache/zephon/content`` beside what tells that the file is still that one:
of a local file its size, inode and the times of its last changes, of a far one its size and tag.
"""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from zephon.fastjson import Json
from zephon.io.dataset import Dataset
from zephon.io.remote import Remote
from zephon.io.storage import LOCAL, is_local, read_range

PART = 8 << 20
WIDTH = 16  # files that are read at once


def content_of(dataset: Dataset, cache: str = "~/.cache/zephon/content") -> dict[str, str]:
    """SHA-256 of each shard by name; of data in memory none."""
    if dataset.memory:
        return {}
    place = Path(cache).expanduser() / f"{hashlib.sha256(_where(dataset).encode()).hexdigest()}.json"
    known = _kept(place)
    numbers = range(len(dataset.shards))
    with ThreadPoolExecutor(WIDTH) as pool:
        marks = list(pool.map(lambda number: _mark(dataset, number), numbers))

        def digest(number: int) -> str:
            before = known.get(dataset.shards[number])
            return before[1] if before is not None and before[0] == marks[number] else _digest(dataset, number)

        digests = list(pool.map(digest, numbers))
    hashes = dict(zip(dataset.shards, digests, strict=True))
    now = {name: [mark, hashes[name]] for name, mark in zip(dataset.shards, marks, strict=True)}
    if now != known:
        _keep(place, {**known, **now})
    return hashes


def _where(dataset: Dataset) -> str:
    return dataset.fs.url(dataset.root) if isinstance(dataset.fs, Remote) else dataset.root


def _mark(dataset: Dataset, number: int) -> str:
    path = dataset.path(number)
    if isinstance(dataset.fs, Remote):
        return str(dataset.fs.mark(path))
    status = os.stat(path)
    return f"{status.st_size} {status.st_ino} {status.st_mtime_ns} {status.st_ctime_ns}"


def _digest(dataset: Dataset, number: int) -> str:
    digest, path, size = hashlib.sha256(), dataset.path(number), dataset.shard(number).size
    fs = LOCAL if dataset.fs is None or is_local(dataset.fs) else dataset.fs
    for start in range(0, size, PART):
        digest.update(read_range(fs, path, start, min(start + PART, size)))
    return digest.hexdigest()


def _kept(place: Path) -> dict[str, list[str]]:
    try:
        kept: Json = json.loads(place.read_text("utf-8"))
    except (OSError, ValueError):  # it is made again
        return {}
    return kept


def _keep(place: Path, kept: dict[str, list[str]]) -> None:
    """Where there is no room, the files are read again the next time."""
    scratch = place.with_suffix(f".{os.getpid()}.tmp")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(json.dumps(kept), "utf-8")
        scratch.replace(place)
    except OSError:
        scratch.unlink(missing_ok=True)
