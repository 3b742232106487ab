"""Which op may follow which, said when the pipeline is described and before any data is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from zephon import Dataset, InMemoryShard, Pipeline, StaticMixtureWorkSource
from zephon.errors import ConfigError

TEXT = {"tokenizer_id": "bytes", "field": "text"}


def same(document: dict[str, Any]) -> dict[str, Any]:
    return document


def pipeline() -> Pipeline:
    datasets = [Dataset.from_dict(name, {"s": InMemoryShard([{"text": name}])}) for name in ("d", "e")]
    return Pipeline(StaticMixtureWorkSource(datasets))


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda p: p.tokenize(**TEXT).pack_flat(8).tokenize(**TEXT), "tokenize comes after pack_flat"),
        (lambda p: p.tokenize(**TEXT).pack_flat(8).decode_text(), "decode_text comes after pack_flat"),
        (lambda p: p.tokenize(**TEXT).pack_flat(8).pack_flat(8), "pack_flat comes after pack_flat"),
        (lambda p: p.shuffle(4).map_transform(same, on_error="quarantine"), "comes after shuffle"),
        (lambda p: p.tokenize(**TEXT, padding=True, max_length=8).pack_flat(8), "padding would be packed as if it were text"),
        (lambda p: p.pack_flat(8, homogeneity="group", groups={"x": ["d"]}), "a dataset would have no group"),
        (lambda p: p.ensure_mixture(), "neither it nor the source has a mixture"),
    ],
)
def test_an_order_that_cannot_work_is_refused(build: Callable[[Pipeline], Pipeline], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build(pipeline()).batch(1).describe()


@pytest.mark.parametrize(
    "build",
    [
        lambda p: p.tokenize(**TEXT).pack_flat(8).map_transform(same).shuffle(4),
        lambda p: p.shuffle(4).map_transform(same).tokenize(**TEXT).pack_flat(8),
        lambda p: p.map_transform(same, on_error="quarantine").shuffle(4),
    ],
)
def test_an_order_that_can_work_is_taken(build: Callable[[Pipeline], Pipeline]) -> None:
    assert build(pipeline()).batch(1).describe()["ops"]
