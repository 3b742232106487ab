"""The contract: what a resume accepts, field by field."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from zephon.errors import ConfigError, ContractError
from zephon.launch.config.compose import compose
from zephon.launch.contract import Seen, check, contract_of, differences
from zephon.launch.start import _contract, _forked, contract_differences, data_seen, rundir_of, start
from zephon.launch.stored import changed, check_relative, forget_measures
from zephon.ops.tokenizers import load_tokenizer
from zephon.run.calibration import read_calibration, write_calibration
from zephon.run.contract_file import read_contract, write_contract
from zephon.run.directory import RunDir
from zephon.run.environment import environment, write_environment
from zephon.spec.experiment import DatasetSpec, RunSpec


@pytest.fixture(scope="module")
def spec() -> RunSpec:
    return compose(["conf=exp1"]).spec


PINNED = [
    ("data.seed=1", "data.seed", 0, 1),
    ("tokenizer.id=bytes", "tokenizer.id", "gpt2", "bytes"),
    ("data.datasets.docs.weight=2.0", "data.datasets.docs.weight", 1.0, 2.0),
    ("pipeline.context_length=64", "pipeline.context_length", 128, 64),
    ("global_batch_size=32", "global_batch_size", 16, 32),
    ("lanes.count=4", "lanes.count", 8, 4),
    ("pipeline.packing=best_fit", "pipeline.packing", "wrap", "best_fit"),
    ("pipeline.shuffle_buffer=7", "pipeline.shuffle_buffer", 256, 7),
    ("pipeline.shuffle_seed=7", "pipeline.shuffle_seed", 0, 7),
    ("pipeline.flush_every_k_chunks=2", "pipeline.flush_every_k_chunks", 8, 2),
    ("data.shuffle_documents=false", "data.shuffle_documents", True, False),
]


@pytest.mark.parametrize(("override", "field", "before", "after"), PINNED)
def test_a_changed_pinned_field_is_refused_with_name_both_values_and_the_ways_on(
    spec: RunSpec, override: str, field: str, before: Any, after: Any
) -> None:
    with pytest.raises(ContractError) as caught:
        check(contract_of(spec), changed(spec, [override]), run="exp1", allow=[])
    text = str(caught.value)
    assert field in text
    assert str(before).lower() in text.lower()
    assert str(after).lower() in text.lower()
    assert "fork=" in text
    assert caught.value.exit_status == 65


def test_a_contract_from_before_a_field_existed_stands_for_what_runs_did_then(spec: RunSpec) -> None:
    contract = contract_of(spec)
    assert not any("on_error" in field for field in contract.pinned), "as older versions wrote it"
    assert "on_error" not in spec.canonical_json()
    assert differences(contract, changed(spec, ["data.on_error=raise"])) == []
    with pytest.raises(ContractError, match=r'data.on_error is "raise" in the run and "quarantine" now') as caught:
        check(contract, changed(spec, ["data.on_error=quarantine"]), run="exp1")
    assert "restore the value (data.on_error=raise)" in caught.value.remedy
    with pytest.raises(ConfigError, match="the field is pinned"):
        check(contract, spec, run="exp1", allow=["data.on_error"])


@pytest.mark.parametrize("override", ["data.on_error=quarantine", "data.datasets.docs.on_error=quarantine"])
def test_a_run_that_quarantines_may_not_stop_doing_so_but_its_budget_is_free(spec: RunSpec, override: str) -> None:
    contract = contract_of(changed(spec, [override]))
    assert check(contract, changed(spec, [override, "data.quarantine_budget=7"]), run="exp1") == []
    with pytest.raises(ContractError) as caught:
        check(contract, spec, run="exp1")
    field = override.split("=")[0]
    assert f'{field} is "quarantine" in the run and ' in caught.value.what
    assert override in caught.value.remedy


def test_a_new_dataset_is_a_change_of_the_mixture(spec: RunSpec) -> None:
    found = differences(contract_of(spec), changed(spec, ["data.datasets.web.path=x"]))
    assert {d.field for d in found} >= {"data.datasets.web.path", "data.datasets.web.weight"}
    assert all(d.run == "(not set)" for d in found)


FREE = ["nodes=4", "trainer.microbatch_size=2", "loader.workers=3", "loader.prefetch_batches=9", "loader.runner=process"]
FREE += [
    "checkpoint.every=5",
    "trainer.log_every=3",
    "elastic.failure_budget=0",
    "lanes.allow=uneven",
    "tokenizer.backend=tokenizers",
]


@pytest.mark.parametrize("override", FREE)
def test_a_free_field_is_never_looked_at(spec: RunSpec, override: str) -> None:
    assert check(contract_of(spec), changed(spec, [override]), run="exp1") == []


@pytest.mark.parametrize("override", ["model.dim=64", "optimizer.lr=0.5", "trainer.steps=100", "trainer.reduction=canonical"])
def test_a_guarded_field_is_refused_unless_it_is_named(spec: RunSpec, override: str) -> None:
    other, field = changed(spec, [override]), override.split("=")[0]
    with pytest.raises(ContractError, match=rf"allow=\[{field}\]"):
        check(contract_of(spec), other, run="exp1")
    for allow in (field, field.split(".")[0]):
        (found,) = check(contract_of(spec), other, run="exp1", allow=[allow])
        assert found.field == field


def test_allow_cannot_name_pinned_or_unknown_fields(spec: RunSpec) -> None:
    with pytest.raises(ConfigError, match="the field is pinned"):
        check(contract_of(spec), spec, run="exp1", allow=["data.seed"])
    with pytest.raises(ConfigError, match=r"did you mean 'optimizer\.lr'"):
        check(contract_of(spec), spec, run="exp1", allow=["optimizer.lrr"])


def test_allowing_one_field_does_not_let_another_through(spec: RunSpec) -> None:
    other = changed(spec, ["optimizer.lr=0.5", "model.dim=64"])
    with pytest.raises(ContractError) as caught:
        check(contract_of(spec), other, run="exp1", allow=["optimizer.lr"])
    assert "model.dim" in str(caught.value)
    assert "optimizer.lr is" not in str(caught.value)


def test_from_the_first_step_on_data_that_was_appended_to_is_refused_at_the_launcher_before_anything_is_submitted(
    tmp_path: Path,
) -> None:
    data = tmp_path / "web.jsonl"
    data.write_text('{"text": "a"}\n' * 100)
    overrides = ["conf=exp1", f"runs={tmp_path / 'runs'}", f"data.datasets.web.path={data}"]
    spec = compose(overrides).spec
    rundir = rundir_of(spec)
    contract = contract_of(spec, seen=data_seen(spec))
    write_contract(rundir, contract)
    data.write_text('{"text": "b"}\n' * 101)
    assert _contract(rundir, spec, data_seen(spec), (), None)[1] == [], "no step has been trained"
    other = changed(spec, ["tokenizer.id=bytes", "data.on_error=quarantine", "trainer.steps=7"])
    assert _contract(rundir, other, data_seen(other), (), None) == (contract_of(other, seen=data_seen(other)), [])
    assert contract_differences(rundir, other) == []
    with pytest.raises(ConfigError, match="there is no guarded field of that name"):
        _contract(rundir, other, data_seen(other), ["trainer.step"], None)
    write_contract(rundir, dataclasses.replace(contract, parent={"run": "exp1", "step": 9}))
    with pytest.raises(ContractError, match=r"tokenizer\.id"):
        _contract(rundir, other, data_seen(other), (), None)
    write_contract(rundir, contract)
    rundir.write_json("checkpoints", "step-00000010", "COMPLETE", data={})
    with pytest.raises(ContractError) as caught:
        start(spec)
    assert "data.datasets.web (its files)" in caught.value.what
    assert "1 files, 1,400 units" in caught.value.what
    assert "1 files, 1,414 units" in caught.value.what
    assert "restore the files of data.datasets.web" in caught.value.remedy
    assert "fork=NEW_NAME" in caught.value.remedy
    assert not rundir.exists("attempts")
    _, parent = _forked(spec, "child")
    assert [change.field for change in parent.changes] == ["data.datasets.web (its files)"]
    data.unlink()
    with pytest.raises(ConfigError) as missing:
        start(spec)
    assert missing.value.what == f"data.datasets.web.path: '{data}': no such file or directory", "its field and place, once"
    assert not hasattr(missing.value, "__notes__")


def test_a_tokenizer_that_gives_other_ids_for_the_same_definition_is_refused_by_name(spec: RunSpec, tmp_path: Path) -> None:
    rundir = RunDir(str(tmp_path))
    before, now = Seen(token_ids="a" * 64), Seen(token_ids="b" * 64)  # as of two versions of the library
    write_contract(rundir, contract_of(spec, seen=before))
    assert check(read_contract(rundir), spec, run="exp1", seen=before) == []
    with pytest.raises(
        ContractError, match=r"tokenizer\.id \(the ids it gives\) is \"sha256 aaaaaaaaaaaa\" in the run"
    ) as caught:
        check(read_contract(rundir), spec, run="exp1", seen=now, allow=[])
    assert "restore the tokenizer's definition, or the version of the package tokenizers" in caught.value.remedy


def test_the_ids_of_the_tokenizer_are_in_the_contract_of_a_start(tmp_path: Path) -> None:
    spec = compose(["conf=exp1", f"runs={tmp_path}", f"data.datasets.web.path={Path(__file__).parent}/*.py"]).spec
    spec = dataclasses.replace(spec, tokenizer=dataclasses.replace(spec.tokenizer, id="gpt2"))
    ids = load_tokenizer("gpt2").ids_sha256
    assert ids is not None
    contract, _ = _contract(rundir_of(spec), spec, data_seen(spec), (), None)
    assert contract.token_ids == ids
    older = dataclasses.replace(contract, token_ids=None)  # of a start that did not see the tokenizer
    write_contract(rundir_of(spec), older)
    rundir_of(spec).write_json("checkpoints", "step-00000010", "COMPLETE", data={})
    assert _contract(rundir_of(spec), spec, data_seen(spec), (), None)[0].token_ids == ids


def test_a_relative_path_that_leads_nowhere_from_here_is_told_from_where_it_was_meant(
    spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "corpus").mkdir()
    relative = dataclasses.replace(spec, data=dataclasses.replace(spec.data, datasets={"web": DatasetSpec(path="corpus")}))
    run = RunDir(str(tmp_path / "run"))
    write_environment(run, 1, dataclasses.replace(environment([], {}), cwd=str(tmp_path)))
    monkeypatch.chdir(tmp_path)
    check_relative(relative, run, 1)
    monkeypatch.chdir(tmp_path / "corpus")
    with pytest.raises(ConfigError, match=rf"data\.datasets\.web\.path=corpus is relative to {tmp_path}"):
        check_relative(relative, run, 1)


def test_another_contract_before_the_first_step_forgets_what_was_measured_of_the_old_data(
    spec: RunSpec, tmp_path: Path
) -> None:
    run = RunDir(str(tmp_path / "run"))
    write_contract(run, contract_of(spec))
    write_calibration(run, {})
    forget_measures(run, contract_of(spec))
    assert read_calibration(run) == {}
    forget_measures(run, contract_of(changed(spec, ["tokenizer.id=bytes"])))
    assert read_calibration(run) is None


def test_a_contract_survives_the_disk(spec: RunSpec, tmp_path: Any) -> None:
    rundir = RunDir(str(tmp_path))
    write_contract(rundir, contract_of(spec))
    assert differences(read_contract(rundir), spec) == []
