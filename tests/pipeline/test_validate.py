"""validate: what is found before a run."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.ops.recipes import PIPELINES, recipe, text
from zephon import Dataset, InMemoryShard, Pipeline, StaticMixtureWorkSource
from zephon.errors import DataError
from zephon.pipeline.validate import before_running

_turn = itertools.count()


def unsteady(doc: dict[str, Any]) -> dict[str, Any]:
    return {**doc, "text": f"{doc['text']} {next(_turn)}"}


def steady_state() -> list[Any]:
    return []


def unsteady_push(state: list[Any], records: list[Any]) -> tuple[list[Any], list[Any]]:
    return state, [{**record.payload, "n": next(_turn)} for record in records]


def pipeline_of(rows: list[dict[str, Any]], **options: Any) -> Pipeline:
    source = StaticMixtureWorkSource([Dataset.from_dict("d", {"s": InMemoryShard(rows)})], shuffle_within_shard=False)
    return Pipeline(source).options(runner="inline", **options)


@pytest.mark.parametrize("name", PIPELINES)
def test_a_good_pipeline_has_no_error_and_is_deterministic(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = recipe(PIPELINES[name])().validate(strict=True)
    assert report.ok, str(report)


def test_an_op_that_gives_two_results_is_named() -> None:
    made = recipe(lambda p: text(p.map_transform(unsteady)).pack_flat(24, algorithm="wrap"))()
    assert made.validate().ok
    report = made.validate(strict=True)
    assert "nondeterministic" in report.codes
    assert "map_transform gave two different results" in str(report)


def test_so_is_a_stateful_one() -> None:
    made = (
        pipeline_of([{"text": "a"}]).stateful_transform("n", init_state=steady_state, push=unsteady_push, version="1").batch(1)
    )
    report = made.validate(strict=True)
    assert report.codes == ["nondeterministic"]
    assert "stateful_transform" in str(report)


def test_a_bad_document_is_found_with_its_address_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text":"a"}\n{"text":"b"}{"text":"c"}\n{"text":7}\n')
    source = StaticMixtureWorkSource([Dataset.from_path("d", str(tmp_path))])
    report = Pipeline(source).tokenize(tokenizer_id="bytes", field="text").batch(1).validate()
    assert report.codes == ["data", "data"]
    assert "shard 'a.jsonl', byte 13" in str(report)
    assert "line at byte 13" in str(report)
    assert "holds int '7', not text" in str(report)


def test_what_would_be_quarantined_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text":"a"}\nnot json\n')
    source = StaticMixtureWorkSource([Dataset.from_path("d", str(tmp_path))])
    pipeline = Pipeline(source).options(on_error="quarantine").tokenize(tokenizer_id="bytes", field="text").batch(1)
    report = pipeline.validate()
    assert (report.ok, report.codes) == (True, ["quarantined"])


def test_a_configuration_that_cannot_work_is_an_issue_and_not_an_exception() -> None:
    made = pipeline_of([{"text": "a"}], canonical_replicas=8, global_batch_size=12).tokenize(tokenizer_id="bytes", field="text")
    report = made.batch(1).validate()
    assert report.codes == ["config"]
    assert "is not a multiple of lanes=8" in str(report)


def test_a_filter_that_leaves_nothing_is_an_error_and_one_that_leaves_little_a_warning() -> None:
    rows = [{"text": "a", "id": i} for i in range(9)]
    nothing = pipeline_of(rows).map_transform(lambda doc: None).batch(1).validate()
    assert (nothing.ok, nothing.codes) == (False, ["nothing-left"])
    little = pipeline_of(rows).map_transform(lambda doc: doc if doc["id"] < 2 else None).batch(1).validate()
    assert (little.ok, little.codes) == (True, ["dropped"])


def test_a_shuffle_buffer_smaller_than_a_chunk_is_pointed_out() -> None:
    pipeline = pipeline_of([{"text": "a"}]).tokenize(tokenizer_id="bytes", field="text").pack_flat(128).shuffle(10).batch(1)
    assert pipeline.validate().codes == ["shuffle-small"]


def test_validate_moves_no_state() -> None:
    pipeline = recipe(PIPELINES["wrap, streaming shuffle"])()
    batches = iter(pipeline)
    next(batches)
    before = pipeline.checkpoint()
    pipeline.validate(strict=True)
    pipeline.explain()
    assert pipeline.checkpoint() == before
    assert next(batches).microbatch == (1, 8)
    pipeline.close()


def test_looking_before_a_run_ends_it_warns_or_does_nothing_as_asked() -> None:
    bad = pipeline_of([{"text": "a"}, {"text": 5}]).tokenize(tokenizer_id="bytes", field="text").batch(1)
    with pytest.raises(DataError, match="not text") as caught:
        before_running(bad.definition, "strict")
    assert "shard 's', row 1" in str(caught.value)
    with pytest.warns(UserWarning, match="not text"):
        before_running(bad.definition, "warn")
    before_running(bad.definition, "off")
    good = pipeline_of([{"text": "a"}]).tokenize(tokenizer_id="bytes", field="text").batch(1)
    before_running(good.definition, "strict")
    state = good.checkpoint()
    before_running(good.definition, "warn")
    assert good.checkpoint() == state


def test_a_pipeline_looks_before_its_first_step_when_asked_to() -> None:
    bad = pipeline_of([{"text": "a"}, {"text": 5}]).tokenize(tokenizer_id="bytes", field="text").batch(1)
    with pytest.raises(DataError, match="would fail on a sample"):
        iter(bad.options(auto_validation="strict"))
    with pytest.warns(UserWarning, match="not text"):
        iter(bad.options(auto_validation="warn"))
    iter(bad.options(auto_validation="off"))
    bad.close()


def test_strict_before_running_is_what_a_strict_validation_finds() -> None:
    """A function with another result at each call."""
    calls = itertools.count()

    def changing(document: dict[str, Any]) -> dict[str, Any]:
        return {**document, "text": f"call {next(calls)}"}

    source = StaticMixtureWorkSource([Dataset.from_dict("d", {"s": InMemoryShard([{"text": "a"}] * 8)})])
    pipeline = Pipeline(source).options(runner="inline", global_batch_size=2)
    pipeline.map_transform(changing, version="1").tokenize(tokenizer_id="bytes", field="text").pack_flat(8).batch(2)
    assert pipeline.validate(strict=True).codes == ["nondeterministic"]
    with pytest.raises(DataError, match="nondeterministic"):
        iter(pipeline.options(auto_validation="strict"))
