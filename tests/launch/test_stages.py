"""A run as a list of stages: refusals, records, what is skipped, and whole runs on two nodes."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.agent.toy import Toy, toy_spec
from zephon.errors import ConfigError
from zephon.launch import control
from zephon.launch import start as session
from zephon.launch.cli.main import main
from zephon.launch.cli.wording import stage_lines
from zephon.launch.config.compose import compose
from zephon.launch.stored import changed
from zephon.run.attempt_stages import AttemptStages, write_attempt_stages
from zephon.run.calibration import forget_calibration, read_calibration
from zephon.run.directory import RunDir
from zephon.run.evaluation import read_evaluation
from zephon.run.metrics import series
from zephon.run.stage_records import StageRecord, read_record, write_record
from zephon.spec.experiment import RunSpec, StageSpec, StagesSpec
from zephon.stages.inputs import fingerprint, inputs_of
from zephon.stages.process import run_stage
from zephon.stages.record import is_current, outstanding
from zephon.stages.stage import check, stages_of

Maker = Callable[..., Toy]
HERE = "tests.launch.own_stages"


def staged(spec: RunSpec, *order: str, **own: Any) -> RunSpec:
    stages = {name: StageSpec.from_dict({"call": f"{HERE}:{name}", **more}) for name, more in own.items()}
    return dataclasses.replace(spec, stages=StagesSpec(order=order, own=stages))


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    return dataclasses.replace(toy_spec(tmp_path), tokenizer=dataclasses.replace(toy_spec(tmp_path).tokenizer, id="bytes"))


def run_one(spec: RunSpec, name: str, attempt: int = 1) -> tuple[int, StageRecord]:
    """One stage in this process, and its record."""
    (stage,) = (one for one in stages_of(spec) if one.name == name)
    rundir = session.rundir_of(spec)
    status = run_stage(rundir, attempt, stage, spec)
    record = read_record(rundir, name)
    assert record is not None
    return status, record


def test_training_alone_is_the_default_and_leaves_the_canonical_form_as_it_was(spec: RunSpec) -> None:
    assert [stage.name for stage in stages_of(spec)] == ["train"]
    assert "stages" not in json.loads(spec.canonical_json())
    other = staged(spec, "calibrate", "train")
    assert RunSpec.from_dict(json.loads(other.canonical_json())) == other
    assert other.fields_of("pinned") == spec.fields_of("pinned")


def test_stages_are_composed_from_group_and_command_line() -> None:
    overrides = [
        "conf=exp1",
        "stages=full",
        "stages.own.r.call=a.b:c",
        "stages.own.r.options.top=3",
        "stages.own.r.inputs=[x,y]",
    ]
    found = compose([*overrides, "stages.order=[doctor,train,r]"]).spec.stages
    assert found.order == ("doctor", "train", "r")
    assert found.own["r"] == StageSpec(call="a.b:c", inputs=("x", "y"), options={"top": 3})


def test_the_group_of_stages_can_be_chosen_again_for_a_stored_experiment(spec: RunSpec, tmp_path: Path) -> None:
    own = staged(spec, "summary", "train", summary={})
    again = changed(own, ["stages=full", "trainer.eval_tokens=7"])
    assert again.stages == StagesSpec(order=("doctor", "calibrate", "train", "evaluate"), own=own.stages.own)
    assert again.trainer.eval_tokens == 7
    with pytest.raises(ConfigError, match="stages=ful: the group has no such option") as refused:
        changed(own, ["stages=ful"])
    assert "did you mean 'full'" in refused.value.remedy
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages" / "mine.yaml").write_text("order: [train, summary]\n")
    assert changed(own, ["stages=mine"], config_dir=str(tmp_path)).stages.order == ("train", "summary")
    (tmp_path / "stages" / "mine.yaml").write_text("order: [train\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml"):
        changed(own, ["stages=mine"], config_dir=str(tmp_path))
    with pytest.raises(ConfigError, match="cannot change a stored experiment"):
        changed(own, ["model=tiny"])


@pytest.mark.parametrize(
    ("order", "own", "said"),
    [
        (("trian",), {}, "did you mean 'train'"),
        (("doctor",), {}, "nothing would be trained"),
        (("train", "train"), {}, "given twice"),
        (("train", "evaluate"), {}, r"without trainer\.eval_data"),
        (("train", "x"), {"x": {"call": "nonsense"}}, "not of the form module:function"),
        (("train", "x"), {"x": {"call": "no.such.module:f"}}, "does not find"),
        (("train", "x"), {"x": {"call": f"{HERE}:reprt"}}, "does not mention"),
        (("train",), {"train": {}}, "name of a built-in stage"),
        (("train",), {"a/b": {}}, "no name for a stage"),
        (("train", "x"), {"x": {"call": f"{HERE}:summary", "outputs": ["../x"]}}, "not below the run directory"),
    ],
)
def test_a_list_of_stages_that_cannot_work_is_refused_before_the_start(
    spec: RunSpec, order: tuple[str, ...], own: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        session.start(staged(spec, *order, **own))
    assert not session.rundir_of(spec).exists("attempts")


def on(spec: RunSpec, scheduler: str) -> RunSpec:
    return dataclasses.replace(spec, scheduler=dataclasses.replace(spec.scheduler, name=scheduler))


def test_what_only_the_nodes_of_a_cluster_can_see_is_not_refused_by_the_launcher(spec: RunSpec) -> None:
    there = staged(on(spec, "kubernetes"), "doctor", "train", "x", x={"call": "in.the.image:f"})
    check(there, here=False)
    with pytest.raises(ConfigError, match="does not find here"):
        check(on(there, "local"), here=True)
    with pytest.raises(ConfigError, match="not of the form module:function"):
        check(staged(there, "train", "x", x={"call": "nonsense"}), here=False)


def test_a_stage_of_a_cluster_is_outstanding_by_what_the_launcher_sees(spec: RunSpec) -> None:
    spec = staged(on(spec, "kubernetes"), "train", "summary", summary={"inputs": ["in.json", "/data/of/the/nodes"]})
    rundir, stage = session.rundir_of(spec), stages_of(spec)[1]
    rundir.write_json("in.json", data={"a": 1})
    assert outstanding(spec, rundir, here=False) == ["summary"]
    inputs = {**inputs_of(stage, spec, rundir, here=False), "source": "of the image"}
    inputs["paths"]["/data/of/the/nodes"] = "unseen"
    sha256 = fingerprint(inputs)
    ran = StageRecord(name="summary", call=stage.call, attempt=1, status="done", inputs=inputs, inputs_sha256=sha256)
    write_record(rundir, ran)
    assert outstanding(spec, rundir, here=False) == []
    assert outstanding(staged(spec, "train", "summary", summary={"options": {"top": 2}}), rundir, here=False) == ["summary"]
    rundir.write_json("in.json", data={"a": 2})
    assert outstanding(spec, rundir, here=False) == ["summary"]


def test_an_older_fencing_token_writes_no_record(spec: RunSpec) -> None:
    spec = staged(spec, "summary", "train", summary={})
    rundir = session.rundir_of(spec)
    write_attempt_stages(rundir, 1, AttemptStages(token=3))
    with pytest.raises(SystemExit) as ended:
        run_stage(rundir, 1, stages_of(spec)[0], spec, token=2)
    assert (ended.value.code, read_record(rundir, "summary")) == (75, None)
    assert run_stage(rundir, 1, stages_of(spec)[0], spec, token=3) == 0


def test_calibration_writes_what_the_workers_read_and_is_skipped_while_its_inputs_stand(spec: RunSpec) -> None:
    spec = changed(staged(spec, "calibrate", "train"), ["data.datasets.code.path=stdlib://code"])
    rundir = session.rundir_of(spec)
    status, record = run_one(spec, "calibrate")
    assert (status, record.status, record.attempt) == (0, "done", 1)
    counts = read_calibration(rundir)
    assert counts is not None
    tokens, size, *_ = counts["docs"]
    assert isinstance(record.result, dict)
    assert record.result["docs"] == tokens / size
    assert 0.9 < tokens / size <= 1.1, "one token a byte, and the ends of documents"
    assert run_one(spec, "calibrate", attempt=2) == (0, record), "skipped: the record is the first attempt's"
    forget_calibration(rundir)
    assert run_one(spec, "calibrate", attempt=3)[1].attempt == 3, "its output was gone"


def test_a_stage_of_ones_own_runs_again_when_options_inputs_or_contract_change(spec: RunSpec) -> None:
    rundir = session.rundir_of(spec)

    def ran(attempt: int, more: dict[str, Any], base: RunSpec = spec) -> bool:
        status, record = run_one(staged(base, "summary", "train", summary=more), "summary", attempt)
        assert status == 0
        return bool(record.attempt == attempt)

    plain = {"outputs": ["summary.json"]}
    assert ran(1, plain)
    assert not ran(2, plain)
    assert ran(3, {**plain, "options": {"top": 5}})
    assert rundir.read_json("summary.json") == {"name": "toy", "loss": None, "top": 5}
    rundir.write_json("in", "a.json", data={"a": 1})
    for attempt, path in zip((4, 7, 10), ("in", "in/a.json", rundir.path("in", "a.json")), strict=True):
        assert ran(attempt, {**plain, "inputs": [path]})
        assert not ran(attempt + 1, {**plain, "inputs": [path]})
        rundir.write_json("in", "a.json", data={"a": 1, "path": path})
        assert ran(attempt + 2, {**plain, "inputs": [path]})
    assert ran(13, plain, dataclasses.replace(spec, global_batch_size=16))
    assert not ran(12, plain), "an earlier attempt leaves the record of a later one as it is"


@pytest.mark.parametrize(
    ("name", "more", "status", "said"),
    [
        ("broken", {}, 1, "RuntimeError: this stage is broken"),
        ("forgetful", {"outputs": ["x.json"]}, 65, "without its output x.json"),
        ("unwritable", {}, 65, "JSON cannot hold"),
        ("summary", {"inputs": ["none"]}, 65, "its input none does not exist"),
        ("absent", {}, 65, "has no function 'absent'"),
    ],
)
def test_a_stage_that_goes_wrong_is_recorded_as_failed_and_is_not_done(
    spec: RunSpec, name: str, more: dict[str, Any], status: int, said: str
) -> None:
    found, record = run_one(staged(spec, name, "train", **{name: more}), name)
    assert (found, record.status) == (status, "failed")
    assert said in record.error


def test_the_doctor_as_a_stage_refuses_data_that_is_not_there(spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(Path(spec.runs) / "state"))
    missing = dataclasses.replace(spec.data.datasets["docs"], path="/nowhere")
    sick = dataclasses.replace(spec, data=dataclasses.replace(spec.data, datasets={"docs": missing}))
    status, record = run_one(staged(sick, "doctor", "train"), "doctor")
    assert (status, record.status) == (65, "failed")
    assert "/nowhere" in record.error
    status, record = run_one(staged(on(spec, "kubernetes"), "doctor", "train"), "doctor")
    assert status == 0, "on a cluster: its process has no right to ask the cluster"
    status, record = run_one(staged(spec, "doctor", "train"), "doctor", attempt=2)
    assert status == 0, record
    assert {"subject", "verdict", "what", "remedy"} == set(record.result["findings"][0])


def test_a_stage_whose_input_an_earlier_one_has_yet_to_make_is_outstanding_and_plan_tells_all(
    spec: RunSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = staged(spec, "calibrate", "train", "summary", summary={"inputs": ["evaluation.json"]})
    rundir = session.rundir_of(spec)
    run_one(spec, "calibrate")
    assert outstanding(spec, rundir, here=True) == ["summary"]
    (tmp_path / "mine.yaml").write_text(json.dumps(spec.to_dict()))
    assert main(["plan", f"conf={tmp_path / 'mine.yaml'}", "name=toy"]) == 0
    told = capsys.readouterr().out.partition("\nstages\n")[2].splitlines()
    wanted = [["calibrate", "done, would be skipped"], ["train", "would run"], ["summary", "would run"]]
    assert [line.split(maxsplit=1) for line in told[:3]] == wanted
    overrides = ["scheduler.name=kubernetes", "scheduler.options.volumes.runs={mount: " + str(tmp_path) + ", claim: c}"]
    assert main(["plan", f"conf={tmp_path / 'mine.yaml'}", "name=toy", *overrides]) == 0
    there = capsys.readouterr().out.partition("\nstages\n")[2].splitlines()
    assert [line.split(maxsplit=1) for line in there[:3]] == wanted
    assert there[3].startswith("on the cluster the first node carries out one stage after the other")


def test_stage_lines_tell_changes_only() -> None:
    before = {"doctor": "done", "train": "running", "evaluate": "waiting"}
    assert stage_lines(before, {**before, "train": "skipped"}) == ["stage train: skipped, its inputs are unchanged"]
    assert stage_lines({}, before) == ["stage doctor: done", "stage train: running"]


@pytest.mark.slow
def test_a_run_of_all_stages_on_two_nodes_and_only_what_has_changed_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    lines = [json.dumps({"text": f"number {i} is followed by {i + 1}. " * 20}) for i in range(200)]
    (tmp_path / "held.jsonl").write_text("\n".join(lines))
    overrides = ["conf=bytes", f"runs={tmp_path / 'runs'}", "nodes=2", "trainer.steps=4", "checkpoint.every=4", "stages=full"]
    overrides += ["pipeline.context_length=16", "model.layers=1", "model.dim=16", "trainer.tensorboard=false"]
    overrides += [f"trainer.eval_data.held.path={tmp_path / 'held.jsonl'}", "trainer.eval_tokens=1000", "trainer.eval_every=4"]
    summary = [f"stages.own.summary.call={HERE}:summary", "stages.own.summary.inputs=[evaluation.json]"]
    spec = compose([*overrides, *summary, "stages.order=[doctor,calibrate,train,evaluate,summary]"]).spec

    def to_the_end(spec: RunSpec) -> dict[str, str]:
        started = session.start(spec)
        assert started.handle is not None
        ended = control.wait_for(started.rundir, lambda now: now.status is not None, 180, "to end")
        assert (ended.state, ended.step) == ("DONE", 4), ended
        return ended.stages

    assert to_the_end(spec) == dict.fromkeys(["doctor", "calibrate", "train", "evaluate", "summary"], "done")
    rundir = session.rundir_of(spec)
    found = read_evaluation(rundir)
    assert found is not None
    assert (found.step, found.tokens >= 1000) == (4, True)
    assert found.loss == pytest.approx(series(rundir)[-1]["eval_loss"], rel=1e-5), "what the two nodes themselves measured"
    assert rundir.read_json("summary.json")["loss"] == found.loss
    assert rundir.read_json("stages", "train.json")["outputs"] == {"step": 4}
    assert session.start(spec).handle is None, "all is done"
    other = changed(spec, ["stages.own.summary.options.top=7"])
    assert outstanding(other, rundir, here=True) == ["summary"]
    again = to_the_end(other)
    assert (again["calibrate"], again["train"], again["evaluate"], again["summary"]) == (
        "skipped",
        "skipped",
        "skipped",
        "done",
    )
    assert rundir.read_json("summary.json")["top"] == 7


@pytest.mark.slow
def test_a_killed_or_stopped_stage_runs_again_at_resume_and_training_follows(toy: Maker) -> None:
    run = toy(nodes=2, steps=3)
    run.spec = staged(run.spec, "once_then_quick", "train", once_then_quick={"outputs": ["made.json"]})
    run.start()
    run.wait(lambda now: run.rundir.exists("seen.json"))
    running = run.status()
    assert (running.state, running.stages["once_then_quick"], running.stages["train"]) == ("RUNNING", "running", "waiting")
    with pytest.raises(ConfigError, match="in stage once_then_quick"):
        control.rescale(run.rundir, 1, wait_s=0)
    os.kill(run.supervisor_pid(), signal.SIGKILL)
    status = run.wait(lambda now: now.state == "FAILED")
    assert status.stages["once_then_quick"] == "interrupted"
    run.rundir.fs.rm_file(run.rundir.path("seen.json"))
    run.resume()
    run.wait(lambda now: run.rundir.exists("seen.json"))
    stopped = control.stop(run.rundir)
    assert (stopped.state, stopped.status, stopped.stages["once_then_quick"]) == ("STOPPED", 143, "stopped")
    run.resume()
    ended = run.wait_end()
    assert (ended.state, ended.stages) == ("DONE", {"once_then_quick": "done", "train": "done"})
    assert run.lines()[-1]["world_size"] == 2


@pytest.mark.slow
def test_a_failed_stage_ends_the_run_with_its_error_and_no_node_starts(toy: Maker) -> None:
    run = toy(nodes=2, steps=3)
    run.spec = staged(run.spec, "broken", "train", broken={})
    run.start()
    status = run.wait_end()
    assert (status.state, status.status) == ("FAILED", 1)
    assert "stage broken failed: RuntimeError: this stage is broken" in status.error
    assert run.events("node_started") == []
    assert status.stages == {"broken": "failed", "train": "not run"}


def test_a_stage_is_current_only_with_the_hash_of_its_inputs(spec: RunSpec) -> None:
    spec = staged(spec, "calibrate", "train")
    stage, rundir = stages_of(spec)[0], RunDir(session.rundir_of(spec).url)
    assert not is_current(rundir, stage, fingerprint(inputs_of(stage, spec, rundir)))
    run_one(spec, "calibrate")
    assert is_current(rundir, stage, fingerprint(inputs_of(stage, spec, rundir)))
    other = dataclasses.replace(spec, tokenizer=dataclasses.replace(spec.tokenizer, special_tokens="none"))
    assert not is_current(rundir, stage, fingerprint(inputs_of(stage, other, rundir)))
