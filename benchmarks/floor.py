"""The floor: a bare loop that reads, tokenizes and packs, with the same back end and no loader around it."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import orjson

from zephon.ops.tokenizers import load_tokenizer
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
    """Rows of ``length`` tokens, each document ended by EOS; goes on through the files where it stopped."""

    def __init__(self, files: list[Path], length: int, workers: int) -> None:
        self._length, self._workers = length, workers
        # A back end of its own: one that a loader beside it uses as well would know all words already.
        self._tokenizer = dataclasses.replace(load_tokenizer("gpt2"))
        self._blocks = blocks(itertools.cycle(files))
        self._rest = np.empty(0, np.uint32)

    def run(self, tokens: int) -> int:
        """Packs until this many tokens are in rows; returns how many are."""
        done = 0
        if self._workers == 1:
            while done < tokens:
                done += self._rows(self._tokens(next(self._blocks))).size
            return done
        with ThreadPoolExecutor(self._workers) as pool:
            pending = collections.deque(pool.submit(self._tokens, next(self._blocks)) for _ in range(2 * self._workers))
            while pending:
                done += self._rows(pending.popleft().result()).size
                if done < tokens:
                    pending.append(pool.submit(self._tokens, next(self._blocks)))
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
