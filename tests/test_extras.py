"""The extras of the package: each is explained, and a missing one is named with the line to type."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from zephon import Pipeline, StaticMixtureWorkSource
from zephon.errors import ConfigError
from zephon.io import Dataset
from zephon.io.decoded import unzstd
from zephon.run.directory import RunDir

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def test_every_extra_is_explained_and_all_has_those_that_go_together() -> None:
    page = (ROOT / "docs" / "install.md").read_text("utf-8")
    assert [name for name in EXTRAS if f"| `{name}` |" not in page] == []
    (everything,) = EXTRAS["all"]
    listed = set(everything.removeprefix("zephon-elastic[").removesuffix("]").split(","))
    assert listed == set(EXTRAS) - {"all", "torchtitan"}, "torchtitan needs a newer torch and an environment of its own"


def test_the_project_says_licence_and_classifiers() -> None:
    from trove_classifiers import classifiers

    assert PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text("utf-8")
    assert set(PROJECT["classifiers"]) <= set(classifiers)


def test_a_missing_extra_is_named_with_the_line_to_type(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for package in ("pyarrow", "zstandard", "s3fs", "gcsfs", "adlfs", "safetensors", "safetensors.torch"):
        monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    from zephon.train import hf

    source = StaticMixtureWorkSource([Dataset.from_path("web", str(tmp_path / "a.parquet"))])
    pipeline = Pipeline(source).options(runner="inline").tokenize(tokenizer_id="bytes", field="text").pack_flat(8).batch(1)
    missing = {
        "parquet": lambda: next(iter(pipeline)),
        "zstd": lambda: unzstd(b"x"),
        "gcs": lambda: Dataset.from_path("web", "gs://bucket/data"),
        "azure": lambda: RunDir("abfs://box/runs"),
        "hf": lambda: hf.export(RunDir(str(tmp_path)), tmp_path),
    }
    for extra, use in missing.items():
        with pytest.raises(ConfigError) as caught:
            use()
        assert f"pip install 'zephon-elastic[{extra}]'" in caught.value.remedy
