"""Meters count what was read and delivered, say who waits for whom, and read-ahead stays within its limits."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from tests.engine.parts import until
from tests.engine.recipes import TEXTS, slow, small
from zephon import Dataset, InMemoryShard, Pipeline, StaticMixtureWorkSource


@pytest.mark.parametrize("options", [{}, {"isolated": True}, {"runner": "process"}], ids=str)
def test_tokens_documents_and_padding_of_one_pass_add_up(options: dict[str, Any]) -> None:
    rows = [{"text": text} for text in TEXTS]
    plan = StaticMixtureWorkSource([Dataset.from_dict("d", {"s": InMemoryShard(rows)})], seed=1, chunk_bytes=900)
    pipeline = (
        Pipeline(plan).options(max_workers=2, **options).tokenize(tokenizer_id="bytes", field="text", special_tokens="eos")
    )
    pipeline.pack_flat(64, algorithm="wrap").batch(1, drop_last=False)
    batches = list(pipeline)
    found = pipeline.metrics_snapshot()
    total = sum(len(text) + 1 for text in TEXTS)
    assert found["tokens"] == {"d": total}
    assert found["documents"] == {"d": len(TEXTS)}
    assert found["bytes"] == {"d": sum(len(text) for text in TEXTS)}
    assert found["padding"] == len(batches) * 64 - total
    assert found["batches"] == len(batches)
    assert set(found["working"]) >= {"read", "tokenize"}


def test_a_slow_function_is_named_as_the_bottleneck_and_a_slow_loop_as_well() -> None:
    pipeline = small(function=slow, max_workers=1)
    for _batch, _ in zip(pipeline, range(60), strict=False):
        pass
    assert "the loader is the bottleneck, in stage 'map_transform'" in pipeline.metrics_snapshot()["bottleneck"]
    pipeline.close()
    pipeline = small()
    batches = iter(pipeline)
    for _ in range(20):
        asked = time.perf_counter()
        next(batches)
        # A slow loop is one that takes far longer than it waits, however busy the machine is.
        time.sleep(100 * (time.perf_counter() - asked))
        assert until(lambda: pipeline._iterator.running.ready > 0)  # type: ignore[union-attr]
    assert "the training loop is the bottleneck" in pipeline.metrics_snapshot()["bottleneck"]
    pipeline.close()


def test_a_lane_whose_documents_are_all_left_out_does_not_make_the_others_run_ahead() -> None:
    read: dict[str, int] = {}

    def starve(document: dict[str, Any]) -> dict[str, Any] | None:
        read[document["kind"]] = read.get(document["kind"], 0) + 1
        return None if document["kind"] == "thin" and document["n"] % 20 else document

    def rows(kind: str) -> list[dict[str, Any]]:
        return [{"text": "x" * 30, "n": n, "kind": kind} for n in range(2000)]

    datasets = [Dataset.from_dict(kind, {"s": InMemoryShard(rows(kind))}) for kind in ("thin", "thick")]
    plan = StaticMixtureWorkSource(datasets, {"thin": 0.9, "thick": 0.1}, seed=2, exhausted_policy="repeat", chunk_bytes=300)
    pipeline = Pipeline(plan).options(canonical_replicas=8, global_batch_size=8, max_workers=2, prefetch_bytes=8 * 2 * 2 * 300)
    pipeline.map_transform(starve, version="1").tokenize(tokenizer_id="bytes", field="text", special_tokens="eos")
    pipeline.pack_flat(31, algorithm="wrap").batch(1)
    held = []
    batches = iter(pipeline)
    for _ in range(200):
        for _ in range(8):
            next(batches)
        lanes = pipeline._iterator.running.lanes  # type: ignore[union-attr]
        held.append(max(lane.ready for lane in lanes.values()))
    pipeline.close()
    # A lane holds at most what one chunk gave beyond its step, plus the batches that are ready.
    assert max(held) <= 10 + 8 + 1
    assert np.mean(held[100:]) <= 2 * np.mean(held[:100]) + 2
