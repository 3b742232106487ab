"""Each experiment in its smallest form: it runs, writes its page, and goes by its rule. Nothing is concluded from these."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import pages
from experiments.intervals import interval, paired_bootstrap, sign_test

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "rule"),
    [("resume", "holds"), ("canonical", "holds"), ("from_scratch", None), ("mixture", None)],
    ids=lambda value: str(value),
)
def test_each_experiment_writes_its_table_and_picture_and_exits_by_its_rule(
    tmp_path: Path, name: str, rule: str | None
) -> None:
    argv = [sys.executable, "-m", f"experiments.{name}", "--tiny", "--out", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, timeout=580, env={**os.environ})
    said = (tmp_path / f"{name}.md").read_text()
    verdict = said.rsplit("**", 2)[1]
    assert (done.returncode == 0) == (verdict == "holds"), done.stderr
    assert rule in (None, verdict), said
    assert said.startswith("| ")
    assert (tmp_path / f"{name}.svg").read_text().startswith("<svg")


def test_intervals_are_those_of_the_textbook() -> None:
    low, high = interval([1.0, 2.0, 3.0]) or (0.0, 0.0)
    assert (round(low, 3), round(high, 3)) == (-0.484, 4.484)  # 2 -+ 4.303 / sqrt(3)
    assert interval([1.0]) is None
    assert (sign_test(3, 3), sign_test(0, 3)) == (0.125, 1.0)


def test_a_bootstrap_of_the_same_documents_is_zero_and_of_a_worse_model_is_not() -> None:
    documents = [(10.0 + i % 3, 10) for i in range(40)]
    worse = [(bits + 1, size) for bits, size in documents]
    assert paired_bootstrap(documents, documents) == (0.0, 0.0)
    low, high = paired_bootstrap(worse, documents)
    assert (round(low, 6), round(high, 6)) == (0.1, 0.1)


def test_a_picture_of_one_point_has_it() -> None:
    assert '<circle cx="70.0"' in pages.lines("t", {"a": [(1.0, 2.0)]}, x="x", y="y", marks=True)
