"""ensure_mixture: nearer to the target, within its buffer, losing nothing unless asked to."""

from __future__ import annotations

from typing import Any

import pytest

from zephon import Dataset, InMemoryShard, Pipeline, StaticMixtureWorkSource, TokenEstimation
from zephon.errors import ConfigError


def pipeline_of(a: int, b: int, mixture: dict[str, float] | None, **options: Any) -> Pipeline:
    """One lane: dataset a's documents have 4 tokens, b's 40; chunks of one dataset come in a row."""
    made = [
        Dataset.from_dict("a", {"s": InMemoryShard([{"input_ids": [1] * 4, "from": "a"}] * a)}),
        Dataset.from_dict("b", {"s": InMemoryShard([{"input_ids": [2] * 40, "from": "b"}] * b)}),
    ]
    source = StaticMixtureWorkSource(made, mixture, chunk_bytes=8000, token_estimation=TokenEstimation(primer=0.125))
    fixed = {"runner": "inline", "prefetch_batches": 0, "global_batch_size": 1, "flush_every_k_chunks": 1000}
    return Pipeline(source).options(**{**fixed, **options})


def order(pipeline: Pipeline) -> str:
    return "".join(batch.payload["from"][0] for batch in pipeline.batch(1))


def worst_run(text: str) -> int:
    return max(len(run) for letter in "ab" for run in text.split("b" if letter == "a" else "a"))


def test_samples_come_in_the_targets_proportion_and_none_is_lost() -> None:
    plain = order(pipeline_of(300, 300, {"a": 1, "b": 1}))
    even = order(pipeline_of(300, 300, {"a": 1, "b": 1}).ensure_mixture(weight_by="samples"))
    assert sorted(plain) == sorted(even)
    assert worst_run(even[:60]) == 1 < worst_run(plain[:60])


def test_the_buffer_bounds_how_much_waits() -> None:
    short = order(pipeline_of(300, 300, {"a": 1, "b": 1}).ensure_mixture(max_buffer_size=5, weight_by="samples"))
    long = order(pipeline_of(300, 300, {"a": 1, "b": 1}).ensure_mixture(max_buffer_size=500, weight_by="samples"))
    assert sorted(short) == sorted(long)
    assert worst_run(long[:200]) < worst_run(short[:200])


def test_without_a_buffer_the_surplus_is_left_out_and_counted() -> None:
    pipeline = pipeline_of(300, 100, {"a": 1, "b": 1}).ensure_mixture(max_buffer_size=None, weight_by="samples")
    batches = list(pipeline.batch(1))
    got = "".join(batch.payload["from"][0] for batch in batches)
    plain = order(pipeline_of(300, 100, {"a": 1, "b": 1}))
    left = sum(item.count for batch in batches for item in batch.dropped)
    assert abs(got.count("a") - got.count("b")) <= 1
    assert 0 < left <= len(plain) - len(got)


def test_packed_rows_are_weighed_in_tokens_of_their_dataset() -> None:
    def shares(balanced: bool) -> float:
        pipeline = pipeline_of(2000, 200, {"a": 1, "b": 1}).pack_flat(40, algorithm="wrap", homogeneity="full")
        pipeline = pipeline.ensure_mixture() if balanced else pipeline
        tokens = [0, 0]
        worst = 0.0
        for batch in pipeline.batch(1):
            tokens = [tokens[0] + batch.tokens["a"], tokens[1] + batch.tokens["b"]]
            if 1200 < sum(tokens) < 8000:
                worst = max(worst, abs(tokens[0] / sum(tokens) - 0.5))
        return worst

    assert shares(True) < 0.05 < shares(False)


def test_a_target_of_its_own_and_a_warning_when_it_cannot_be_met() -> None:
    with pytest.warns(UserWarning, match="of a flush interval instead of 0.900"):
        order(pipeline_of(50, 50, {"a": 1, "b": 1}).ensure_mixture(mixture={"a": 9, "b": 1}, warn_tolerance=0.05))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"max_buffer_size": 0}, "max_buffer_size=0"),
        ({"weight_by": "bytes"}, "weight_by='bytes'"),
        ({"mixture": {"a": 1}}, r"the datasets are \['a', 'b'\]"),
        ({"buffer": 3}, "has no option 'buffer'"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        pipeline_of(3, 3, {"a": 1, "b": 1}).ensure_mixture(**options).batch(1).describe()


def test_without_any_mixture_there_is_no_target() -> None:
    with pytest.raises(ConfigError, match="neither it nor the source has a mixture"):
        pipeline_of(3, 3, None).ensure_mixture().batch(1).describe()
