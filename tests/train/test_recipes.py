"""Each recipe, stopped half way and resumed, trains as if it had not been stopped."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("default")  # the libraries' own warnings are theirs


def recipe(name: str, library: str | None) -> Any:
    if library is not None:
        pytest.importorskip(library)
    return importlib.import_module(f"examples.recipes.{name}")


@pytest.mark.parametrize(
    "name, library",
    [
        ("plain", None),
        ("saving", None),
        ("stateful", "torchdata"),
        ("accelerate", "accelerate"),
        ("fabric", "lightning_fabric"),
        ("lightning", "pytorch_lightning"),
    ],
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


ROOT = Path(__file__).resolve().parents[2]


def printed(*command: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "-m", *command], env=env, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("plain", None),
        ("saving", None),
        ("stateful", "torchdata"),
        ("accelerate", "accelerate"),
        ("trainer", "transformers"),
        ("fabric", "lightning_fabric"),
        ("lightning", "pytorch_lightning"),
    ],
)
def test_a_recipe_runs_by_itself_and_prints_what_it_shows(name: str, library: str | None) -> None:
    if library is not None:
        pytest.importorskip(library)
    shown = printed(f"examples.recipes.{name}")
    assert "step 5  loss" in shown
    assert "the same losses" in shown


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_under_torchrun_a_recipe_gives_the_losses_of_one_process_on_two(name: str) -> None:
    alone, divided = (
        printed("torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m", f"examples.recipes.{name}")
        for ranks in (1, 2)
    )
    assert "the same losses" in alone
    assert divided == alone
