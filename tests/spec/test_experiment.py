from __future__ import annotations

import dataclasses
import json
import math
import typing
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


def floats(kind: type, prefix: str = "") -> list[str]:
    """The names of all fields below a spec that hold a number that need not be whole."""
    found, hints = [], typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            found += floats(hint, f"{prefix}{field.name}__")
        elif hint in (float, float | None):
            found.append(prefix + field.name)
    return found


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_number_is_infinite_or_not_a_number(value: float) -> None:
    assert len(floats(RunSpec)) > 10
    for name in floats(RunSpec):
        with pytest.raises(ConfigError, match="is not a finite number"):
            RunSpec.from_dict(changed(**{name: value}))
    for given in ({"data__tokens_per_byte": {"docs": value}}, {"optimizer__betas": (value, 0.5)}):
        with pytest.raises(ConfigError, match="is not a finite number"):
            RunSpec.from_dict(changed(**given))
    with pytest.raises(ConfigError, match=r"weight=.* is not a finite number"):
        RunSpec.from_dict(changed(data__datasets={"docs": {"path": "x", "weight": value}}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("optimizer__clip", -1.0),
        ("optimizer__clip", 0.0),
        ("optimizer__lr", -1.0),
        ("optimizer__betas", (0.9, 1.0)),
        ("optimizer__betas", (-0.1, 0.5)),
        ("optimizer__weight_decay", -0.1),
        ("model__rope_theta", 0.0),
        ("model__kv_heads", 0),
        ("model__vocab_size", -1),
        ("trainer__eval_tokens", 0),
        ("trainer__torch_threads", 0),
        ("checkpoint__keep_every", 0),
        ("elastic__drain_s", 0.0),
        ("elastic__heartbeat_s", -1.0),
        ("data__datasets", {"docs": {"path": "x", "weight": -1.0}}),
        ("data__tokens_per_byte", {"docs": 0.0}),
    ],
)
def test_every_number_has_its_bounds(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=r"is below|is not above|is not below"):
        RunSpec.from_dict(changed(**{name: value}))
