"""What a worker would only find out after its start is found before an attempt exists, and doctor says the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from zephon.errors import ConfigError, ZephonError
from zephon.exits import Exit
from zephon.launch import preflight
from zephon.launch.cli.main import main
from zephon.launch.config.compose import compose
from zephon.run.directory import RunDir
from zephon.spec.experiment import RunSpec

LINES = [{"text": f"document {number} with some words"} for number in range(50)]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    Path("good.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    Path("named.jsonl").write_text("".join(json.dumps({"content": line["text"]}) + "\n" for line in LINES))
    Path("broken.jsonl").write_text("{not json\n" * 50)
    Path("data.parquet").write_bytes(b"PAR1 not really")


def spec_of(*overrides: str, path: str = "good.jsonl") -> RunSpec:
    fields = ["conf=bytes", "~data", "name=run", f"data.datasets.web.path={path}", "pipeline.context_length=32"]
    return compose([*fields, *overrides]).spec


def test_an_experiment_that_can_begin_passes() -> None:
    preflight.check(spec_of(), RunDir("runs/run"))


WRONG = [
    (["model.heads=3"], "good.jsonl", "do not fit together"),
    (["trainer.tensor_parallel=3", "nodes=3", "model.heads=4"], "good.jsonl", "trainer.tensor_parallel=3 does not divide"),
    (["trainer.device=cuda", "scheduler.options.gpus=none"], "good.jsonl", "shows no GPU"),
    (["trainer.eval_every=5"], "good.jsonl", "without trainer.eval_data"),
    (["tokenizer.id=nowhere"], "good.jsonl", "nowhere"),
    (["model.vocab_size=100"], "good.jsonl", "smaller than the 258 ids"),
    ([], "named.jsonl", "text"),
    ([], "broken.jsonl", "broken.jsonl"),
    (["model.dim=65536", "model.layers=4000", "model.heads=64"], "good.jsonl", "bytes are free"),
    (["trainer.eval_every=5", "trainer.eval_data.held.path=gone"], "good.jsonl", "trainer.eval_data.held.path"),
    (
        ["trainer.eval_data.held.path=good.jsonl"],
        "good.jsonl",
        r"eval_data.held and data.datasets.web share the file .*good.jsonl",
    ),
    (
        ["trainer.eval_data.held={path: good.jsonl, fraction: [0.8, 1]}", "data.datasets.web.fraction=[0, 0.9]"],
        "good.jsonl",
        "share the file",
    ),
    (["data.datasets.web.tokens=gpt2"], "good.jsonl", r"web.tokens='gpt2': ids of another tokenizer than tokenizer.id='bytes'"),
    (
        ["data.datasets.web.where='lang = 1'"],
        "good.jsonl",
        r"data.datasets.web: where='lang = 1' cannot be read.*\n.*write ==",
    ),
    (["data.datasets.web.shards='*.parquet'"], "good.jsonl", r"data.datasets.web: none of its 1 shards matches"),
    (["data.datasets.web.where='nothing == 1'"], "good.jsonl", r"no document"),
]


@pytest.mark.parametrize(("overrides", "path", "part"), WRONG)
def test_what_cannot_begin_is_refused(overrides: list[str], path: str, part: str) -> None:
    with pytest.raises(ZephonError, match=part):
        preflight.check(spec_of(*overrides, path=path), RunDir("runs/run"))


def test_a_missing_package_is_named_with_the_line_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match="pip install wandb"):
        preflight.check(spec_of("trainer.wandb=project"), RunDir("runs/run"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'zephon-elastic\[parquet\]'"):
        preflight.check(spec_of(path="data.parquet"), RunDir("runs/run"))


def test_a_run_that_cannot_begin_leaves_no_attempt_and_doctor_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["conf=bytes", "~data", "name=run", "data.datasets.web.path=named.jsonl"]
    assert main(["run", *typed]) == Exit.REFUSED
    refused = capsys.readouterr().err
    assert "found before the start, in the first documents of data.datasets.web\n" in f"{refused}\n"
    assert not RunDir("runs/run").attempts()
    assert main(["doctor", *typed]) == Exit.DISAGREES
    first = refused.removeprefix("error: ").splitlines()[0]
    assert first in " ".join(capsys.readouterr().out.split())
