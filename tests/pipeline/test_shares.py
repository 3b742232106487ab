"""A mixture has its shares from the start, whatever the sizes of its datasets."""

from __future__ import annotations

from collections import Counter

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
