from __future__ import annotations

import json
from typing import Any

import pytest

from zephon.errors import ConfigError
from zephon.spec.experiment import RunSpec

MINIMAL: dict[str, Any] = {
    "name": "exp",
    "global_batch_size": 16,
    "data": {"datasets": {"docs": {"path": "stdlib://docs"}}},
    "pipeline": {"context_length": 128},
    "trainer": {"steps": 60},
}


def changed(**dotted: Any) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(MINIMAL))
    for name, value in dotted.items():
        *path, last = name.split("__")
        place = copy
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return copy


def test_a_spec_survives_its_own_canonical_json() -> None:
    spec = RunSpec.from_dict(MINIMAL)
    assert RunSpec.from_dict(json.loads(spec.canonical_json())) == spec
    assert RunSpec.from_dict(json.loads(spec.canonical_json())).sha256() == spec.sha256()


def test_whole_numbers_and_floats_of_one_value_are_one_spec() -> None:
    assert RunSpec.from_dict(changed(optimizer__lr=1)).sha256() == RunSpec.from_dict(changed(optimizer__lr=1.0)).sha256()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (changed(lane={}), "did you mean 'lanes'?"),
        (changed(data__datasets={"d": {"pat": "x"}}), "data.datasets.d.pat"),
        (changed(global_batch_size="16"), "global_batch_size='16' is not of type int"),
        (changed(trainer__compile=1), "trainer.compile=1 is not of type bool"),
        (changed(lanes__count=True), "lanes.count=True is not of type int"),
        (changed(pipeline__packing="wrp"), "did you mean 'wrap'?"),
        (changed(nodes=0), "nodes=0 is below 1"),
        (changed(optimizer__betas=[0.9]), "a list of 2 values"),
        ({"name": "x"}, "data, pipeline, trainer must be given"),
    ],
)
def test_mistakes_are_named_with_their_full_name(data: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RunSpec.from_dict(data)
    assert says in str(caught.value)


def test_a_field_that_came_late_is_said_only_where_it_says_something_else_than_runs_did_before_it() -> None:
    before = RunSpec.from_dict(MINIMAL)
    for name, value in [("data__on_error", "raise"), ("data__quarantine_budget", 100), ("stages__order", ["train"])]:
        assert RunSpec.from_dict(changed(**{name: value})).sha256() == before.sha256()
    now = RunSpec.from_dict(changed(data__on_error="quarantine", data__quarantine_budget=7))
    assert now.sha256() != before.sha256()
    assert RunSpec.from_dict(json.loads(now.canonical_json())) == now
    assert set(now.fields_of("pinned")) - set(before.fields_of("pinned")) == {"data.on_error"}
    assert before.to_dict()["data"]["on_error"] == "raise"


def test_what_defines_the_data_is_pinned_and_what_moves_it_is_free() -> None:
    spec = RunSpec.from_dict(MINIMAL)
    pinned, guarded, free = (set(spec.fields_of(kind)) for kind in ("pinned", "guarded", "free"))  # type: ignore[arg-type]
    assert {
        "data.seed",
        "data.datasets.docs.weight",
        "tokenizer.id",
        "pipeline.context_length",
        "pipeline.packing",
        "pipeline.shuffle_buffer",
        "pipeline.flush_every_k_chunks",
        "lanes.count",
        "global_batch_size",
    } <= pinned
    assert {"model.dim", "optimizer.lr", "trainer.steps", "trainer.reduction"} <= guarded
    assert {"nodes", "loader.workers", "loader.prefetch_batches", "trainer.microbatch_size", "elastic.procs_per_node"} <= free
    assert not pinned & guarded | pinned & free | guarded & free
