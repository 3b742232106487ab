"""The number for how well rows are shuffled is what delivered batches show."""

from __future__ import annotations

from collections import Counter

import pytest

from zephon import Dataset, InMemoryShard, Pipeline, StaticMixtureWorkSource
from zephon.pipeline.mixing import mixing_of

SHARDS, ROWS = 64, 1024


def pipeline(*, shuffle_shards: bool = True, buffer: int = 128, chunk_bytes: int | None = None) -> Pipeline:
    """64 shards of 128 KiB, a row for each document of 128 bytes; 4 lanes of 16 rows a step."""
    shards = {f"s{i:02}": InMemoryShard([{"text": f"{i:02}" + "x" * 125, "n": n} for n in range(ROWS)]) for i in range(SHARDS)}
    source = StaticMixtureWorkSource(
        [Dataset.from_dict("d", shards)],
        shuffle_shards=shuffle_shards,
        shuffle_within_shard=False,
        exhausted_policy="repeat",
        chunk_bytes=chunk_bytes,
    )
    built = Pipeline(source).options(lanes=4, global_batch_size=64, max_workers=0, flush_every_k_chunks=4)
    built.tokenize(tokenizer_id="bytes", field="text").pack_flat(128)
    return (built.shuffle(buffer) if buffer else built).batch(16)


def seen(built: Pipeline, steps: int = 96) -> float:
    """The chance that two rows of a global batch are of one shard, over so many delivered batches."""
    same = pairs = 0
    shards: Counter[str] = Counter()
    for batch in built:
        if batch.step == steps:
            break
        shards.update(row[:2] for row in batch.text())
        if batch.microbatch[0] + 1 == batch.microbatch[1]:
            same += sum(count * (count - 1) for count in shards.values())
            pairs += shards.total() * (shards.total() - 1)
            shards.clear()
    built.close()
    return same / pairs


@pytest.mark.parametrize(
    "settings",
    [
        {"chunk_bytes": 1 << 17, "buffer": 4096},
        {"chunk_bytes": 1 << 15, "buffer": 1024},
        {"chunk_bytes": 1 << 14, "buffer": 0},
    ],
)
def test_it_is_about_what_delivered_batches_show(settings: dict[str, int]) -> None:
    built = pipeline(**settings)
    assert mixing_of(built.definition).chance == pytest.approx(seen(built), rel=0.35)


def test_settings_that_hurt_are_named_with_what_would_help() -> None:
    good = mixing_of(pipeline(chunk_bytes=1 << 17, buffer=4096).definition)
    assert good.times < 2
    assert good.hurts == ()
    stored = mixing_of(pipeline(shuffle_shards=False).definition)
    assert stored.times > 5
    assert any("shuffle_shards=True" in warning for warning in stored.warnings)
    plain = mixing_of(pipeline(buffer=0).definition)
    assert any("shuffle_buffer=256" in warning for warning in plain.warnings)
    assert "times that of a uniform shuffle" in pipeline().explain()
