"""Each recipe, stopped half way and resumed, trains as if it had not been stopped."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("default")  # the libraries' own warnings are theirs


def recipe(name: str, library: str | None) -> Any:
    if library is not None:
        pytest.importorskip(library)
    return importlib.import_module(f"examples.recipes.{name}")


@pytest.mark.parametrize(
    "name, library",
    [("plain", None), ("stateful", "torchdata"), ("accelerate", "accelerate"), ("fabric", "lightning_fabric")],
)
def test_a_recipe_goes_on_where_it_stopped(tmp_path, name, library):
    train = recipe(name, library).train
    whole = train(6, tmp_path / "whole")
    first, second = train(3, tmp_path / "parts"), train(6, tmp_path / "parts")
    assert len(whole) == 6
    assert first + second == whole
    assert whole[-1] < whole[0]


def test_the_trainer_recipe_goes_on_where_it_stopped(tmp_path):
    train = recipe("trainer", "transformers").train
    whole = train(6, tmp_path / "whole")
    first, second = train(3, tmp_path / "parts"), train(6, tmp_path / "parts", resume=True)
    assert len(whole) == 6
    assert first + second == pytest.approx(whole, abs=1e-6)
