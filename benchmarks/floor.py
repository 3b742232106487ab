"""The floor: a bare loop that reads, tokenizes and packs, with the same back end and no loader around it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import orjson

from zephon.ops.tokenizers import load_tokenizer
from zephon.types import Array

BLOCK = 1 << 18


def blocks(files: list[Path]) -> Iterator[bytes]:
    """Whole lines, about ``BLOCK`` bytes at a time."""
    for file in files:
        with open(file, "rb", buffering=0) as handle:
            rest = b""
            while data := handle.read(BLOCK):
                end = data.rfind(b"\n") + 1
                if end:
                    yield rest + data[:end]
                    rest = data[end:]
                else:
                    rest += data
            if rest:
                yield rest


class Packer:
    """Rows of ``length`` tokens, each document ended by EOS."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.tokenizer = load_tokenizer("gpt2")
        self._rest = np.empty(0, np.uint32)

    def tokens(self, data: bytes) -> Array:
        texts = [orjson.loads(line)["text"] for line in data.split(b"\n") if line]
        ids = self.tokenizer.encode(texts)
        out = np.empty(len(ids.values) + len(texts), np.uint32)
        ends = ids.offsets[1:] + np.arange(len(texts))
        keep = np.ones(len(out), bool)
        keep[ends] = False
        out[keep] = ids.values
        out[ends] = self.tokenizer.eos_id
        return out

    def rows(self, tokens: Array) -> Array:
        stream = np.concatenate([self._rest, tokens])
        count = len(stream) // self.length
        self._rest = stream[count * self.length :]
        return stream[: count * self.length].reshape(count, self.length)


def run(files: list[Path], length: int, workers: int, tokens: int) -> int:
    """Packs until this many tokens are in rows; returns how many are."""
    packer, done = Packer(length), 0
    if workers == 1:
        for data in blocks(files):
            done += packer.rows(packer.tokens(data)).size
            if done >= tokens:
                break
        return done
    with ThreadPoolExecutor(workers) as pool:
        source = blocks(files)
        pending = [pool.submit(packer.tokens, data) for _, data in zip(range(2 * workers), source, strict=False)]
        while pending and done < tokens:
            done += packer.rows(pending.pop(0).result()).size
            if (data := next(source, None)) is not None:
                pending.append(pool.submit(packer.tokens, data))
        for future in pending:
            future.cancel()
    return done


def affinity() -> list[int]:
    return sorted(os.sched_getaffinity(0))
