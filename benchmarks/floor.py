"""The floor: a bare loop that reads, tokenizes and packs, with the same back end and no loader around it."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import orjson

from zephon.ops.tokenizers import Tokenizer, load_tokenizer
from zephon.types import Array

BLOCK = 1 << 18


def blocks(files: Iterable[Path]) -> Iterator[bytes]:
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


class Floor:
    """Rows of ``length`` tokens, each document ended by EOS. Each core has files, a thread and a stream of its own.

    Nothing passes between the threads, so this is more than any loader that keeps an order could do.
    """

    def __init__(self, files: list[Path], length: int, cores: int) -> None:
        # A back end of its own: one that a loader beside it uses as well would know all words already.
        tokenizer = dataclasses.replace(load_tokenizer("gpt2"))
        self._loops = [_Loop(files[core::cores], length, tokenizer) for core in range(cores)]
        self._pool = ThreadPoolExecutor(cores)  # kept: a back end may remember words by thread

    def run(self, tokens: int) -> int:
        """Packs until this many tokens are in rows, and goes on there at the next call; returns how many are."""
        if len(self._loops) == 1:
            return self._loops[0].run(tokens)
        return sum(self._pool.map(lambda loop: loop.run(tokens // len(self._loops)), self._loops))


class _Loop:
    def __init__(self, files: list[Path], length: int, tokenizer: Tokenizer) -> None:
        self._length, self._tokenizer = length, tokenizer
        self._blocks = blocks(itertools.cycle(files))
        self._rest = np.empty(0, np.uint32)

    def run(self, tokens: int) -> int:
        done = 0
        while done < tokens:
            done += self._rows(self._tokens(next(self._blocks))).size
        return done

    def _tokens(self, data: bytes) -> Array:
        texts = [orjson.loads(line)["text"] for line in data.split(b"\n") if line]
        ids = self._tokenizer.encode(texts)
        out = np.empty(len(ids.values) + len(texts), np.uint32)
        ends = ids.offsets[1:] + np.arange(len(texts))
        keep = np.ones(len(out), bool)
        keep[ends] = False
        out[keep] = ids.values
        out[ends] = self._tokenizer.eos_id
        return out

    def _rows(self, tokens: Array) -> Array:
        stream = np.concatenate([self._rest, tokens])
        count = len(stream) // self._length
        self._rest = stream[count * self._length :]
        return stream[: count * self._length].reshape(count, self._length)


def affinity() -> list[int]:
    return sorted(os.sched_getaffinity(0))
