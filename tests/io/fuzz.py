"""Fuzzing of the readers: damaged files give the right documents, or an error that names the shard, soon and in little memory.

    python -m tests.io.fuzz --seconds 60 [--seed 1] [--only 17]

A case is a number: its format, documents, damage and reading follow from the seed and the number; ``--only`` repeats it.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.io.samples import CHECKED, DAMAGES, WRITERS, Document
from zephon.errors import DataError, ZephonError
from zephon.io import Dataset, read
from zephon.types import Chunk, ShardRange

LIMIT_S = 5.0
GROWTH = 700 << 20  # bytes of memory that all cases together may add


class Wrong(AssertionError):
    """What a reader may not do."""


def case(seed: int, number: int, folder: Path) -> str:
    """Runs one case, and says which it was. Raises Wrong."""
    chance = random.Random(f"{seed}/{number}")
    suffix = chance.choice(list(WRITERS))
    documents = [
        {"text": f"{i} " + "".join(chance.choices("abc dé\n", k=chance.randrange(120))), "n": [i, 2 * i]}
        for i in range(1 if suffix == "txt" else chance.randint(1, 60))
    ]
    whole = WRITERS[suffix](documents)
    damage = chance.choice([*DAMAGES, "replaced"])
    path = folder / f"{number}.{suffix}"
    about = f"seed {seed}, case {number}: {path.name}, {damage}"
    if damage == "replaced":  # after the listing, by a file of another format, and most often of another size
        path.write_bytes(whole)
        harmed = WRITERS[chance.choice([other for other in WRITERS if other != suffix])](documents)
    else:
        harmed = DAMAGES[damage](whole, chance)
        path.write_bytes(harmed)
    began = time.monotonic()
    try:
        dataset = Dataset.from_path("d", str(path))
        if damage == "replaced":
            path.write_bytes(harmed)
        got, bad = _read(dataset, chance.choice([1, 2, 5]))
    except DataError as error:
        text = "\n".join([str(error), *getattr(error, "__notes__", ())])
        if path.name not in text:
            raise Wrong(f"{about}: an error without the shard's name: {text}") from error
    except ZephonError:
        if harmed != b"":  # refused at the listing
            raise
    except Exception as error:
        raise Wrong(f"{about}: {type(error).__name__}: {error}") from error
    else:
        _judge(about, suffix, damage, whole, harmed, documents, got, bad)
    finally:
        path.unlink(missing_ok=True)
    if time.monotonic() - began > LIMIT_S:
        raise Wrong(f"{about}: took {time.monotonic() - began:.1f} s")
    return about


def _read(dataset: Dataset, parts: int) -> tuple[list[dict[str, Any]], list[DataError]]:
    documents, bad = [], []
    size = int(dataset.sizes[0])
    for start, stop in itertools.pairwise(size * i // parts for i in range(parts + 1)):
        if start < stop:
            documents += read(dataset, Chunk(0, 0, 0, (ShardRange(0, start, stop),)), bad).dicts()
    return documents, bad


def _judge(
    about: str,
    suffix: str,
    damage: str,
    whole: bytes,
    harmed: bytes,
    documents: list[Document],
    got: list[dict[str, Any]],
    bad: list[DataError],
) -> None:
    """No document is lost silently, and where a checksum covers them, none is another one."""
    expected = [_text(document) for document in documents]
    texts = [_text(document) for document in got]
    if damage == "replaced":
        if bad or len(harmed) == len(whole):  # of the same length: what names and sizes cannot tell
            return
        raise Wrong(f"{about}: {len(texts)} documents of another file")
    doubled = damage == "joined" and harmed == whole + whole
    if suffix in CHECKED and texts not in (expected, expected * 2 if doubled else expected):
        raise Wrong(f"{about}: {len(texts)} documents that differ from the {len(expected)} written")
    if suffix in ("jsonl", "txt"):
        if damage == "flipped" and len(texts) + 20 * len(bad) + 20 < len(expected):
            raise Wrong(f"{about}: {len(texts)} documents and {len(bad)} bad ones of {len(expected)}")
        if doubled and suffix == "jsonl" and texts != expected * 2:
            raise Wrong(f"{about}: {len(texts)} documents of two files of {len(expected)}")
    elif suffix == "tar" and damage in ("cut", "overwritten"):
        pass  # members have no checksum, and zeros are the end of a tar: what is lost just before them is not told by it
    elif len(texts) + len(bad) < len(expected):
        raise Wrong(f"{about}: {len(texts)} documents and {len(bad)} bad ones of {len(expected)}")
    elif doubled and suffix not in CHECKED and len(texts) + len(bad) < 2 * len(expected):
        raise Wrong(f"{about}: {len(texts)} documents of two files of {len(expected)}")


def _text(document: dict[str, Any]) -> object:
    return document.get("text", document.get("txt"))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int)
    given = parser.parse_args()
    wrong: list[str] = []
    count = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before = 0
        until = time.monotonic() + given.seconds
        for number in itertools.count() if given.only is None else [given.only]:
            if time.monotonic() > until or len(wrong) >= 20:
                break
            print(f"case {number}", file=sys.stderr, flush=True)  # the last line where a reader ends the process
            faulthandler.dump_traceback_later(4 * LIMIT_S, exit=True)
            try:
                case(given.seed, number, folder)
            except Wrong as error:
                wrong.append(str(error))
            count += 1
            before = before or (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if number == 50 else 0)
        faulthandler.cancel_dump_traceback_later()
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before * 1024
        if before and grown > GROWTH:
            wrong.append(f"memory grew by {grown >> 20} MiB")
    print(f"\n{count} cases, {len(wrong)} wrong")
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
