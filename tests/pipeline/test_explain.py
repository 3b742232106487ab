"""explain: every setting either changes what runs, or is said to have no effect."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from tests.ops.recipes import PIPELINES, recipe
from zephon import Dataset, InMemoryShard, Pipeline, SampleBatch, StaticMixtureWorkSource
from zephon.engine.runners.make import default_workers
from zephon.errors import ConfigError
from zephon.io.cache import CacheOptions, cached
from zephon.pipeline.options import Options


def source(rows: int = 40) -> StaticMixtureWorkSource:
    shard = InMemoryShard([{"text": f"number {i}"} for i in range(rows)])
    return StaticMixtureWorkSource([Dataset.from_dict("d", {"s": shard})], chunk_bytes=64)


def built(**options: Any) -> Pipeline:
    pipeline = Pipeline(source()).options(canonical_replicas=2, global_batch_size=4).options(**options)
    return pipeline.tokenize(tokenizer_id="bytes", field="text").pack_flat(16).batch(2)


def same(batch: SampleBatch) -> SampleBatch:
    return batch


def unchanged(document: dict[str, Any]) -> dict[str, Any]:
    return document


def without_effect(pipeline: Pipeline) -> list[str]:
    """The lines of explain() about settings that change nothing."""
    lines = pipeline.explain().splitlines()
    if "given, but without effect" not in lines:
        return []
    first = lines.index("given, but without effect") + 1
    return [line.strip() for line in lines[first : lines.index("", first)]]


def observed(pipeline: Pipeline) -> dict[str, Any]:
    """What an option can change: the stream, what is read, what runs, what a rank gets, and when it looks and ends."""
    definition = pipeline.definition
    program, cache = definition.program(), CacheOptions.of(definition.options.io_options)
    return {
        "stream": pipeline.describe(),
        "data": [cached(dataset, cache) is dataset for dataset in definition.source.datasets],
        "engine": definition.settings(),
        "interval": program.flush_every,
        "quarantine": program.quarantine,
        "world": definition.world,
        "rank": definition.delivery().rank,
        "process": definition.options.isolated,
        "look": definition.options.auto_validation,
    }


CHANGES: dict[str, Any] = {
    "runner": "inline",
    "max_workers": 3,
    "isolated": True,
    "prefetch_batches": 5,
    "prefetch_bytes": 1 << 20,
    "flush_every_k_chunks": 3,
    "io_options": {"cache": {"enabled": True}},
    "dp_degree": 2,
    "dp_group_id": 1,
    "world_size": 2,
    "global_rank": 1,
    "canonical_replicas": 4,
    "global_batch_size": 8,
    "lanes_allow": "shared",
    "run_id": "exp1",
    "auto_validation": "warn",
    "on_error": "quarantine",
    "quarantine_budget": 3,
    "last_step": "same",
}
ONE_VALUE = {"deterministic": False, "mapping_strategy": "round_robin"}


def test_the_table_of_changes_names_every_option() -> None:
    assert {*CHANGES, *ONE_VALUE} == {field.name for field in dataclasses.fields(Options)}


@pytest.mark.parametrize("name", CHANGES)
def test_an_option_changes_something_or_is_said_to_have_no_effect(name: str) -> None:
    needed: dict[str, dict[str, Any]] = {
        "dp_group_id": {"dp_degree": 2},
        "quarantine_budget": {"on_error": "quarantine"},
        "world_size": {"global_rank": 0, "canonical_replicas": 2},
        "global_rank": {"world_size": 2, "global_rank": 0, "canonical_replicas": 2},
    }
    fixed = needed.get(name, {})
    plain, changed = built(**fixed), built(**{**fixed, name: CHANGES[name]})
    said = [line for line in without_effect(changed) if line.startswith(f"options({name}=")]
    assert without_effect(plain) == []
    assert (observed(plain) != observed(changed)) == (not said)


@pytest.mark.parametrize("name", ONE_VALUE)
def test_an_option_with_one_value_refuses_every_other(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        built(**{name: ONE_VALUE[name]})
    assert without_effect(built(**{name: getattr(Options(), name)})) == []


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda p: p.options(run_id="x").batch(1), "options(run_id='x'): a state is recognized by its fingerprint"),
        (lambda p: p.options(flush_every_k_chunks=3).batch(1), "options(flush_every_k_chunks=3): no op reorders"),
        (lambda p: p.options(quarantine_budget=3).batch(1), "options(quarantine_budget=3): nothing is quarantined"),
        (
            lambda p: p.options(runner="inline", max_workers=3).batch(1),
            "options(max_workers=3): runner='inline' has no workers",
        ),
        (lambda p: p.options(max_workers=0, prefetch_batches=3).batch(1), "options(prefetch_batches=3): there are no workers"),
        (lambda p: p.options(max_workers=0, prefetch_bytes=99).batch(1), "options(prefetch_bytes=99): there are no workers"),
        (lambda p: p.options(max_workers=0).prefetch(9).batch(1), "prefetch(buffer_size=9): there are no workers"),
        (lambda p: p.options(io_options={"cache": {"enabled": True}}).batch(1), "options(io_options=...): only far data"),
    ],
)
def test_an_option_without_effect_says_why(build: Callable[[Pipeline], Pipeline], says: str) -> None:
    (line,) = without_effect(build(Pipeline(source())))
    assert line.startswith(says)


TEXT = {"tokenizer_id": "bytes", "field": "text"}
IN_LANE = "it runs in each lane's own thread"


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda p: p.decode_text(parallelism=2).batch(1), []),
        (lambda p: p.tokenize(**TEXT, parallelism=2).batch(1), []),
        (
            lambda p: p.map_transform(unchanged, parallelism=2).tokenize(**TEXT, parallelism=5).batch(1),
            ["map_transform(parallelism=2): all stages share one pool, and the largest parallelism counts: 5"],
        ),
        (
            lambda p: p.options(max_workers=4).tokenize(**TEXT, parallelism=5).batch(1),
            ["tokenize(parallelism=5): all stages share one pool, and max_workers=4 says how large it is"],
        ),
        (
            lambda p: p.options(runner="inline").tokenize(**TEXT, parallelism=5).batch(1),
            ["tokenize(parallelism=5): there are no"],
        ),
        (lambda p: p.tokenize(**TEXT).pack_flat(8, parallelism=3).batch(1), [f"pack_flat(parallelism=3): {IN_LANE}"]),
        (lambda p: p.tokenize(**TEXT).pack_sequences(8, parallelism=3).batch(1), [f"pack_sequences(parallelism=3): {IN_LANE}"]),
        (lambda p: p.shuffle(4).map_transform(unchanged, parallelism=3).batch(1), [f"map_transform(parallelism=3): {IN_LANE}"]),
        (
            lambda p: p.stateful_transform("n", init_state=list, push=lambda s, r: (s, r), parallelism=3, version="1").batch(1),
            [f"stateful_transform(parallelism=3): {IN_LANE}"],
        ),
        (
            lambda p: p.stateful_transform("n", init_state=list, push=lambda s, r: (s, r), version="1").batch(1),
            [],
        ),
        (lambda p: p.batch(1).map_batch(same, parallelism=3), ["map_batch(parallelism=3): batches are made one by one"]),
    ],
)
def test_parallelism_is_the_size_of_the_one_pool_or_is_said_to_have_no_effect(
    build: Callable[[Pipeline], Pipeline], says: list[str]
) -> None:
    lines = without_effect(build(Pipeline(source())))
    assert len(lines) == len(says)
    assert all(line.startswith(beginning) for line, beginning in zip(lines, says, strict=True))


@pytest.mark.parametrize(
    ("build", "workers", "says"),
    [
        (lambda p: p, None, f"  on workers ({default_workers()} threads, by the cores of this machine), a chunk at a time:"),
        (lambda p: p.tokenize(**TEXT, parallelism=3), 3, "  on workers (3 threads), a chunk at a time:"),
        (lambda p: p.options(max_workers=2, runner="process"), 2, "  on workers (2 processes), a chunk at a time:"),
        (lambda p: p.prefetch(4, parallelism=3), 3, "  on workers (3 threads), a chunk at a time:"),
        (lambda p: p.options(max_workers=0), 0, "  on workers (none: the caller's thread), a chunk at a time:"),
        (
            lambda p: p.options(runner="inline", max_workers=3),
            3,
            "  on workers (none: the caller's thread), a chunk at a time:",
        ),
    ],
)
def test_the_workers_that_are_printed_are_those_that_run(
    build: Callable[[Pipeline], Pipeline], workers: int | None, says: str
) -> None:
    pipeline = build(Pipeline(source())).batch(1)
    assert says in pipeline.explain().splitlines()
    assert pipeline.definition.settings().workers == workers


def test_it_says_what_comes_from_where_and_what_it_costs() -> None:
    shown = recipe(PIPELINES["quarantine"])(dp_degree=5, dp_group_id=1, lanes_allow="uneven", microbatch_size=1).explain()
    for sentence in (
        "  a: memory, 2 shards, 29,026 bytes, 15 chunks, 50.0% of the tokens",
        "  8 lanes, 16 sequences a step, 2 a lane",
        "uneven: lanes are read 1.25 times in all",
        "uneven: 20 forwards where 16 hold sequences (25% more)",
        "map_transform fn=tests.ops.recipes.fails_at_sevens@",
        "on_error=quarantine",
        "a flush sentinel every 3 chunks; wrap carries its last tokens across by address",
        "268,435,456 bytes (prefetch_bytes)",
        "    shuffle: 4 elements, 384 bytes a lane",
    ):
        assert sentence in shown, shown
    assert recipe(PIPELINES["quarantine"])().fingerprint in shown


def test_it_says_when_a_shuffle_buffer_can_never_fill() -> None:
    def shown(buffer: int, every: int | None = 8) -> str:
        rows = [{"text": f"number {i}"} for i in range(400)]
        data = StaticMixtureWorkSource([Dataset.from_dict("d", {"s": InMemoryShard(rows)})], chunk_bytes=2048)
        pipeline = Pipeline(data).options(canonical_replicas=1, flush_every_k_chunks=every)
        pipeline.tokenize(tokenizer_id="bytes", field="text").pack_flat(64, algorithm="wrap").shuffle(buffer).batch(1)
        return next(line for line in pipeline.explain().splitlines() if "shuffle: " in line)

    assert shown(100) == "    shuffle: 100 elements, 25,600 bytes a lane"
    assert shown(1000) == (
        "    shuffle: 1000 elements, 32,768 bytes a lane; "
        "between two sentinels come at most about 128 rows, so that it mixes those and never fills"
    )
    assert shown(1000, None) == "    shuffle: 1000 elements, 256,000 bytes a lane", "the interval follows the buffer"
