"""Realized shares beside their targets, over a window of steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.train.synthetic import spec
from zephon.run.calibration import write_calibration
from zephon.run.directory import RunDir
from zephon.train.shares import RealizedShares
from zephon.types import Sampled

DATASETS = {"a": {"path": "memory://a", "weight": 3.0}, "b": {"path": "memory://b"}}
PHASES = {"first": {"until": "10 steps", "mixture": {"a": 1.0}}, "then": {"mixture": {"a": 1.0, "b": 1.0}}}


def test_shares_stand_beside_the_targets_of_their_steps(tmp_path: Path) -> None:
    datasets = {name: {"path": dataset["path"]} for name, dataset in DATASETS.items()}
    shares = RealizedShares(RunDir(str(tmp_path)), spec(data__datasets=datasets, data__phases=PHASES))
    for step in range(10):
        shares.add(step, {"a": 272})
    assert (shares.realized, shares.targets) == ({"a": 1.0}, {"a": 1.0})
    for step in range(10, 20):
        shares.add(step, {"a": 68, "b": 204})
    assert shares.realized == {"a": 0.625, "b": 0.375}
    assert shares.targets == {"a": 0.75, "b": 0.25}
    for step in range(20, 1020):
        shares.add(step, {"a": 136, "b": 136})
    assert shares.realized == {"a": 0.5, "b": 0.5}
    assert shares.targets == pytest.approx({"a": 0.5, "b": 0.5})


def test_a_drift_is_told_once_where_chance_does_not_explain_it(tmp_path: Path) -> None:
    run = RunDir(str(tmp_path))
    write_calibration(run, {name: Sampled(50_000, 200_000, 1_000, 400) for name in DATASETS})
    shares = RealizedShares(run, spec(data__datasets=DATASETS))

    def told(step: int, of_b: int) -> str:
        shares.add(step, {"a": 272 - of_b, "b": of_b})
        return shares.drift()

    assert not any(told(step, 70) for step in range(1100)), "3 % above a quarter"
    sentences = [sentence for step in range(1100, 2300) if (sentence := told(step, 90))]
    assert len(sentences) == 2
    assert sentences[0].startswith("dataset 'b' was ")
    assert "its target is 25.00%" in sentences[0]
