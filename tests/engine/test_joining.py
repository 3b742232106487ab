from __future__ import annotations

from typing import Any

import pytest

from zephon import Dataset, InMemoryShard, Pipeline, StaticMixtureWorkSource


def pipeline(ahead: int, *, special_tokens: str = "eos", homogeneity: str = "none") -> Pipeline:
    def rows(name: str, every: int) -> list[dict[str, Any]]:
        return [{"text": "" if i % every == 0 else f"{name}{i} " * (1 + i % 11)} for i in range(160)]

    datasets = [
        Dataset.from_dict(name, {"s": InMemoryShard(rows(name, every)), "t": InMemoryShard(rows(name * 2, 1000))})
        for name, every in (("a", 7), ("b", 5))
    ]
    source = StaticMixtureWorkSource(datasets, {"a": 3, "b": 1}, seed=4, chunk_bytes=200, exhausted_policy="repeat")
    chain = Pipeline(source).options(canonical_replicas=2, flush_every_k_chunks=6).prefetch(ahead)
    chain.tokenize(tokenizer_id="bytes", field="text", special_tokens=special_tokens)
    return chain.pack_flat(64, algorithm="wrap", homogeneity=homogeneity).shuffle(8).batch(2)


def seen(chain: Pipeline, count: int) -> list[Any]:
    batches = []
    for _, batch in zip(range(count), chain, strict=False):
        state = {lane: cursor.encode() for lane, cursor in batch.state.lanes.items()}
        batches.append((batch.payload["input_ids"].tolist(), batch.positions().tolist(), batch.tokens, state, batch.dropped))
    chain.close()
    return batches


@pytest.mark.parametrize("special_tokens", ["eos", "none"])
@pytest.mark.parametrize("homogeneity", ["none", "full"])
def test_chunks_pushed_together_give_what_they_give_one_by_one(special_tokens: str, homogeneity: str) -> None:
    """Also the states, the boundaries of documents, and where empty documents are reported as left out."""
    one_by_one = seen(pipeline(1, special_tokens=special_tokens, homogeneity=homogeneity), 120)
    for ahead in (2, 4, 13):
        assert seen(pipeline(ahead, special_tokens=special_tokens, homogeneity=homogeneity), 120) == one_by_one
    if special_tokens == "none":
        assert any(dropped for *_, dropped in one_by_one)
