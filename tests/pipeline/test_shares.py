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


def test_chunks_of_all_datasets_have_equally_many_tokens_and_an_interval_keeps_its_length() -> None:
    definition = pipeline(100, 0).definition
    small, large = definition.chunk_lengths
    assert abs(small / large - 1) < 0.02
    assert small < 20_000 < definition.chunk_bytes
    held = definition.program().flush_every * large
    assert 0.9 < held / (definition.flush_every * definition.chunk_bytes) <= 1
    assert "as lanes and mixture need them" in built_text(100)


def built_text(documents: int) -> str:
    return pipeline(documents, 0).explain()
