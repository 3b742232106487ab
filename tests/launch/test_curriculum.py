"""A curriculum through the launcher: what ``plan`` shows of it, which changes a resume takes over, what ``diff`` says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from zephon.errors import ConfigError, ContractError
from zephon.exits import Exit
from zephon.launch.cli.curriculum import picture
from zephon.launch.cli.main import main
from zephon.launch.config.compose import compose
from zephon.launch.contract import Seen, check, contract_of, record
from zephon.launch.data_plan import DataPlan, DatasetPlan, PhasePlan, data_plan
from zephon.launch.stored import changed
from zephon.run.contract_file import read_contract, write_contract
from zephon.run.directory import RunDir
from zephon.run.specs import new_attempt
from zephon.spec.experiment import RunSpec

PHASES = "data.phases={begin: {until: 20 steps, mixture: {docs: 9, code: 1}}, end: {mixture: {docs: 1, code: 1}}}"
STATIC = ["conf=bytes", "trainer.steps=60"]


def spec(*overrides: str) -> RunSpec:
    return compose([*STATIC, *overrides]).spec


def test_a_phase_is_set_as_a_whole_or_field_by_field() -> None:
    whole = spec(PHASES)
    fields = ["begin.until=20 steps", "begin.mixture={docs: 9, code: 1}", "end.mixture.docs=1", "end.mixture.code=1"]
    assert spec(*(f"data.phases.{field}" for field in fields)).data.phases == whole.data.phases
    assert RunSpec.from_dict(json.loads(json.dumps(whole.to_dict()))) == whole
    assert spec().sha256() != whole.sha256()


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("data.phases.end.mixture.cood=1", "gives a weight to 'cood', which is no dataset"),
        ("data.phases.begin.until=20 epochs", "data.phases.begin: until='20 epochs' is not a number of steps or tokens"),
        ("data.phases.late={mixture: {docs: 1}}", "data.phases.end and data.phases.late have no end"),
        ("data.phases.end.change=linear", "data.phases.end: a linear change of the mixture has no end"),
        ("data.datasets.docs.weight=3", "the weight would have no effect"),
    ],
)
def test_phases_that_cannot_work_are_refused_when_they_are_composed(override: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        spec(PHASES, override)
    assert says in str(caught.value)


def test_plan_shows_datasets_with_passes_and_warns_and_draws_the_phases(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["conf=bytes", PHASES, "trainer.steps=6000", f"runs={tmp_path}"]
    assert main(["plan", *arguments, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    docs, code = sorted(data["datasets"], key=lambda row: row["name"], reverse=True)
    assert (docs["name"], code["name"]) == ("docs", "code")
    assert abs(docs["share"] - (20 * 0.9 + 5980 * 0.5) / 6000) < 1e-9
    read = 6000 * 16 * 129
    assert abs(docs["passes"] - docs["share"] * read / docs["tokens"]) < 0.01 * docs["passes"]
    assert [(phase["begin"], phase["end"]) for phase in data["phases"]] == [(0, 20), (20, None)]
    assert any("dataset 'docs' would be read" in warning for warning in data["warnings"])
    assert main(["plan", *arguments]) == 0
    shown = capsys.readouterr().out
    assert "docs" in shown
    assert re.search(r"^ 100% [dc]{64}$", shown, re.M)


def test_plan_says_which_documents_packing_would_drop() -> None:
    few = ["pipeline.context_length=64", "pipeline.packing=first_fit"]
    warned = data_plan(spec(*few), RunDir("memory://none")).warnings
    assert any(
        re.search(r"pack_flat drops documents longer than 65 tokens: of a sample, [\d,]+ of .* of the tokens", w)
        for w in warned
    )
    assert not any("drops" in warning for warning in data_plan(spec(few[0]), RunDir("memory://none")).warnings)


def test_the_picture_has_a_column_for_each_part_and_marks_the_phases() -> None:
    rows = tuple(
        DatasetPlan(name=n, size=1, tokens=1, error=0, share=0, within=0, passes=0, chunks=1, chunks_a_lane=1)
        for n in ("web", "wiki")
    )
    phases = tuple(PhasePlan(begin=b, end=None, change="at_once", shares={}) for b in (0, 500))
    plan = DataPlan(steps=1000, datasets=rows, phases=phases, mixing="", warnings=())
    columns: list[Any] = [{"web": 1.0}] * 2 + [{"web": 0.5, "wiki": 0.5}] * 2
    drawn = list(picture(plan, columns, height=2))
    assert drawn == [" 100% wwii", "  50% wwww", "      +-+-", "      0   of 1,000 steps", "      w web   i wiki"]


def test_phases_that_have_not_begun_may_change_and_the_contract_says_at_which_step(tmp_path: Path) -> None:
    begun, rundir = spec(PHASES), RunDir(str(tmp_path / "run"))
    contract = contract_of(begun, seen=Seen(files={"docs": {"sha256": "1"}, "code": {"sha256": "2"}}))
    later = changed(begun, ["data.phases.end.until=40 steps", "data.phases.last.mixture.code=1"])
    accepted = check(contract, later, run="r", steps=15)
    assert {difference.field for difference in accepted} == {
        "data.phases.end.until",
        *(f"data.phases.last.{field}" for field in ("until", "mixture", "change")),
    }
    record(rundir, contract, later, accepted, attempt=2, steps=15)
    stored = read_contract(rundir)
    assert {entry["step"] for entry in stored.allowed} == {15}
    assert check(stored, later, run="r", steps=15) == []
    with pytest.raises(ContractError, match="step 20 is the first that would differ, and 21 steps are done"):
        check(contract, changed(begun, ["data.phases.end.mixture.code=9"]), run="r", steps=21)
    with pytest.raises(ContractError, match=r"step 12 is the first that would differ, and 15 steps are done"):
        check(contract, changed(begun, ["data.phases.begin.until=12 steps"]), run="r", steps=15)


def test_a_run_with_one_mixture_may_be_given_phases_and_a_dataset_that_joins(tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("more")
    begun = spec("data.datasets.docs.weight=3")
    contract = contract_of(begun, seen=Seen(files={"docs": {"sha256": "1"}, "code": {"sha256": "2"}}))
    more = [f"data.datasets.more.path={tmp_path / 'more.txt'}", "data.datasets.more.weight=0"]
    later = changed(begun, [*more, "data.phases.begin.until=30 steps", "data.phases.end.mixture={more: 1, code: 1}"])
    accepted = check(contract, later, run="r", steps=30)
    assert "data.datasets.more.path" in {difference.field for difference in accepted}
    rundir = RunDir(str(tmp_path / "run"))
    record(rundir, contract, later, accepted, attempt=2, steps=30, files={"more": {"sha256": "3"}, "docs": {"sha256": "1"}})
    assert sorted(read_contract(rundir).files or {}) == ["code", "docs", "more"]
    with pytest.raises(ContractError, match="step 30 is the first that would differ"):
        check(contract, later, run="r", steps=31)
    with pytest.raises(ContractError, match=r"is 3.0 in the run and 4.0 now; step 0 is the first"):
        check(contract, changed(begun, ["data.datasets.docs.weight=4"]), run="r", steps=1)


def test_diff_names_the_fields_with_both_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, override in (("one", "data.seed=1"), ("two", "data.seed=2")):
        written = spec(override, f"name={name}", f"runs={tmp_path}")
        rundir = RunDir(str(tmp_path / name))
        new_attempt(rundir, written)
        write_contract(rundir, contract_of(written))
    assert main(["diff", "one", "two", f"runs={tmp_path}", "--json"]) == Exit.DISAGREES
    shown = json.loads(capsys.readouterr().out)
    assert [(field["field"], field["run"], field["now"]) for field in shown["fields"]] == [("data.seed", 1, 2)]
    assert main(["diff", "one", "one", f"runs={tmp_path}"]) == 0
    assert "no field that defines the data differs" in capsys.readouterr().out
