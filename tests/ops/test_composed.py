"""The laws over pipelines that nobody thought of: random ops, sizes, restarts and performance settings."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.laws import Recipe, assert_restarts, assert_same_data, reference
from tests.strategies import chains, datasets, ways
from zephon import Dataset, Pipeline, StaticMixtureWorkSource, TokenEstimation
from zephon.errors import DataError

pytestmark = [  # random data are often too few for the lanes, or for a step
    pytest.mark.filterwarnings("ignore:the data holds"),
    pytest.mark.filterwarnings("ignore:the data ends before the first step"),
]
STEPS = 4


def recipe_of(made: list[Dataset], ops: list[tuple[str, dict[str, Any]]], flush: int, chunk_bytes: int) -> Recipe:
    def recipe(dp_degree: int = 1, dp_group_id: int = 0, microbatch_size: int = 2, **options: Any) -> Pipeline:
        source = StaticMixtureWorkSource(
            made,
            {"a": 2, "b": 1},
            seed=5,
            shuffle_within_shard=True,
            exhausted_policy="repeat",
            chunk_bytes=chunk_bytes,
            token_estimation=TokenEstimation(primer=1.0),
        )
        fixed: dict[str, Any] = {"canonical_replicas": 4, "global_batch_size": 8, "flush_every_k_chunks": flush}
        fixed["quarantine_budget"] = 10**6
        pipeline = Pipeline(source).options(
            **{**fixed, "lanes_allow": "uneven", "dp_degree": dp_degree, "dp_group_id": dp_group_id, **options}
        )
        for name, given_options in ops:
            extra = {"tokenizer_id": "bytes", "field": "text"} if name == "tokenize" else {}
            getattr(pipeline, name)(**extra, **given_options)
        return pipeline.batch(microbatch_size)

    return recipe


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    one=datasets("a"),
    other=datasets("b"),
    ops=chains(),
    flush=st.integers(1, 4),
    chunk_bytes=st.sampled_from([17, 64, 300]),
    sizes=st.lists(st.sampled_from([1, 2, 3, 4, 5, 7, 8]), min_size=2, max_size=4),
    every=st.integers(1, 2),
    way=ways,
)
def test_any_pipeline_keeps_the_laws(
    one: Dataset, other: Dataset, ops: Any, flush: int, chunk_bytes: int, sizes: list[int], every: int, way: dict[str, Any]
) -> None:
    recipe = recipe_of([one, other], ops, flush, chunk_bytes)
    try:
        expected = reference(recipe, STEPS)
    except DataError as error:  # nothing that is left fits: an error, and no endless search
        if "made no sequence" not in str(error) and "found no document" not in str(error):
            raise
        return
    assert_restarts(recipe, expected, sizes=sizes, every=every, runner="inline", prefetch_batches=0)
    assert_same_data(recipe, expected[:2], sizes=sizes[:1], **way)
