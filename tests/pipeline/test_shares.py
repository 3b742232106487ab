"""A mixture has its shares from the start, whatever the sizes of its datasets."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest

from zephon import Dataset, InMemoryShard, Pipeline, StaticMixtureWorkSource


def pipeline(documents: int, seed: int) -> Pipeline:
    """A small dataset of so many short documents beside a large one of long documents, half and half."""
    small = Dataset.from_dict("small", {"s": InMemoryShard([{"text": "s" * 200}] * documents)})
    large = Dataset.from_dict("large", {"s": InMemoryShard([{"text": "l" * 2000}] * 2000)})
    source = StaticMixtureWorkSource([small, large], {"small": 1, "large": 1}, seed=seed, exhausted_policy="repeat")
    built = Pipeline(source).options(lanes=8, global_batch_size=16, max_workers=0)
    return built.tokenize(tokenizer_id="bytes", field="text").pack_flat(context_length=127).shuffle(seed=seed).batch(2)


@pytest.mark.parametrize("documents", [100, 2000])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_first_twenty_global_batches_have_the_mixture_within_a_tenth(documents: int, seed: int) -> None:
    built = pipeline(documents, seed)
    tokens: Counter[str] = Counter()
    for batch in built:
        if batch.step == 20:
            break
        tokens.update(batch.tokens)
    built.close()
    assert abs(tokens["small"] / tokens.total() / 0.5 - 1) < 0.1


def test_each_dataset_has_chunks_as_its_share_allows_and_an_interval_keeps_its_length() -> None:
    definition = pipeline(100, 0).definition
    assert max(definition.chunk_lengths) < 20_000 < definition.chunk_bytes
    held = definition.program().flush_every * definition.mean_chunk_bytes
    assert 0.9 < held / (definition.flush_every * definition.chunk_bytes) <= 1
    assert "as lanes and mixture need them" in pipeline(100, 0).explain()


def keeps_half(document: dict[str, Any]) -> dict[str, Any] | None:
    return document if document["n"] * 2654435761 % 4294967296 < 1 << 31 else None


@pytest.mark.slow
@pytest.mark.parametrize("weight", [0.3, 0.9])
def test_shares_of_any_thousand_delivered_batches_are_within_one_percent(weight: float) -> None:
    """Documents ten times as long, of a dataset a thousand times as large; half of the short ones are filtered out."""
    short = Dataset.from_dict("short", {"s": InMemoryShard([{"text": "s" * (20 + n % 41), "n": n} for n in range(2000)])})
    rows = [{"text": "l" * (200 + n * 37 % 401), "n": 0} for n in range(250_000)]
    large = Dataset.from_dict("large", {f"s{i}": InMemoryShard(rows[i::8]) for i in range(8)})
    assert large.size > 900 * short.size
    source = StaticMixtureWorkSource([short, large], {"short": weight, "large": 1 - weight}, exhausted_policy="repeat")
    built = Pipeline(source).options(lanes=8, global_batch_size=32, max_workers=1).map_transform(keeps_half)
    built.tokenize(tokenizer_id="bytes", field="text").pack_flat(128).shuffle(64).batch(4)
    tokens = np.array([sum(batch.tokens["short"] for batch in step) for step in itertools.islice(built.steps(), 1100)])
    built.close()
    sums = np.concatenate([[0], np.cumsum(tokens)])
    share = (sums[1000:] - sums[:-1000]) / (1000 * 32 * 128)
    assert np.abs(share / weight - 1).max() < 0.01
