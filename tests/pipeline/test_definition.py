"""A definition is a value: what is built from it leaves it as it was."""

from __future__ import annotations

import dataclasses

import pytest

from tests.ops.recipes import PIPELINES, recipe
from zephon import Dataset, InMemoryShard, Pipeline, StaticMixtureWorkSource
from zephon.errors import ConfigError
from zephon.ops.shuffle import Shuffle
from zephon.pipeline.definition import Batching, BatchMap, Definition
from zephon.types import Sampled


def source(count: int = 9) -> StaticMixtureWorkSource:
    return StaticMixtureWorkSource([Dataset.from_dict("d", {"s": InMemoryShard([{"text": "abcd"}] * count)})])


def test_each_change_is_another_definition() -> None:
    empty = Definition(source=source())
    shuffled = empty.with_op(Shuffle(buffer_size=4))
    batched = shuffled.with_batching(Batching(2, drop_last=True)).with_options({"canonical_replicas": 4})
    assert (len(empty.ops), len(shuffled.ops), empty.batching, shuffled.batching) == (0, 1, None, None)
    assert (empty.options.canonical_replicas, batched.options.canonical_replicas) == (None, 4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        empty.ops = ()  # type: ignore[misc]


def test_a_pipeline_replaces_its_definition_and_a_refused_change_leaves_it() -> None:
    pipeline = Pipeline(source()).shuffle(4)
    before = pipeline.definition
    with pytest.raises(ConfigError):
        pipeline.shuffle(0)
    with pytest.raises(ConfigError):
        pipeline.options(max_workers=-1)
    assert pipeline.definition is before
    pipeline.batch(1)
    assert (pipeline.definition is before, before.batching) == (False, None)


@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_and_its_definition_describe_one_stream(name: str) -> None:
    pipeline = recipe(PIPELINES[name])()
    assert pipeline.definition.describe() == pipeline.describe()
    assert pipeline.definition.fingerprint == pipeline.fingerprint


def test_tokens_per_byte_are_measured_once_and_not_at_all_when_given() -> None:
    pipeline = recipe(PIPELINES["wrap, streaming shuffle"])()
    counts = pipeline.calibrate()
    assert pipeline.options(max_workers=1).definition.measured == counts
    other = dict.fromkeys(counts, Sampled(1, 7))
    assert pipeline.calibrate(other) == other == pipeline.definition.counts
    assert {name: tuple(pair) for name, pair in pipeline.describe()["tokens_per_byte"].items()} == other


def test_ops_are_split_where_the_first_accumulator_stands() -> None:
    pipeline = Pipeline(source()).map_transform(dict, version="1").tokenize(tokenizer_id="bytes", field="text")
    pipeline.pack_flat(8).map_transform(dict, version="2").batch(1)
    stages, accumulators = pipeline.definition.graph
    assert [op.name for op in stages] == ["map_transform", "tokenize"]
    assert [op.describe()["op"] for op in accumulators] == ["pack_flat", "map_transform"]


def test_sentinels_come_only_where_an_op_reorders_and_then_by_default_every_eight_chunks() -> None:
    def every(pipeline: Pipeline) -> int:
        return pipeline.definition.flush_every

    assert every(Pipeline(source()).options(flush_every_k_chunks=3).batch(1)) == 0
    assert every(Pipeline(source()).shuffle(4).batch(1)) == 8
    assert every(Pipeline(source()).options(flush_every_k_chunks=3).shuffle(4).batch(1)) == 3
    with pytest.raises(ConfigError, match="replay the lane from its very beginning"):
        every(Pipeline(source()).options(flush_every_k_chunks=0).shuffle(4).batch(1))


def test_nothing_but_map_batch_follows_batch() -> None:
    batched = Definition(source=source()).with_batching(Batching(1, drop_last=True))
    with pytest.raises(ConfigError, match="shuffle comes after batch"):
        batched.with_op(Shuffle())
    with pytest.raises(ConfigError, match="batch comes after batch"):
        batched.with_batching(Batching(1, drop_last=True))
    batch_map = BatchMap(lambda batch: batch, {"function": "f"}, None)
    assert batched.with_batch_map(batch_map).batch_maps == (batch_map,)
    with pytest.raises(ConfigError, match="put it after batch"):
        Definition(source=source()).with_batch_map(batch_map)


def test_without_batch_there_is_no_division_to_ask_for() -> None:
    with pytest.raises(ConfigError, match="the pipeline has no batch"):
        _ = Definition(source=source()).world


def test_an_address_is_found_by_name_or_the_nearest_name_is_said() -> None:
    definition = Definition(source=source())
    assert definition.locate(("d", "s", 3)) == (0, 0, 3)
    with pytest.raises(ConfigError, match="names no dataset"):
        definition.locate(("e", "s", 3))
    with pytest.raises(ConfigError, match="has no shard 't'"):
        definition.locate(("d", "t", 3))
