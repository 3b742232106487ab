"""The command line without starting anything: help, plan, refusals, exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zephon.launch.cli.arguments import parse
from zephon.launch.cli.grammar import VERBS
from zephon.launch.cli.main import main
from zephon.launch.cli.plan import node_counts


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_help_shows_groups_verbs_and_three_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(verb in text for verb in VERBS)
    assert "conf bytes, exp1" in " ".join(text.split())
    assert all(example in text for example in ("zephon conf=exp1 nodes=4", "zephon rescale exp1", "zephon resume exp1"))


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["statsu"], "did you mean 'status'?"),
        (["--detatch"], "did you mean '--detach'?"),
        (["--limit"], "expected one argument"),
        (["--detach=yes"], "ignored explicit argument 'yes'"),
        (["run", "exp1"], "conf=exp1"),
        (["status", "a", "b"], "one run"),
        (["status", "none"], "no run 'none'"),
        (["stop"], "no run"),
        (["rescale"], "no run"),
        (["verify", "a", "b", "c"], "one or two runs"),
        (["conf=exp1", "conf=bytes"], "2 times"),
        (["conf=exp1", "scheduler.name=slurm"], "scheduler.name='slurm'"),
        (["conf=exp1", "fork=x"], "no complete checkpoint"),
        (["conf=exp1", "-m", "data.seed=1,1"], "are the same experiment"),
        (["conf=exp1", "-m", "data.seed=1,x"], "data.seed"),
        (["conf=exp1", "-m", "--limit", "0"], "--limit: '0' is not a whole number from 1"),
        (["--completion", "fish"], "choose from 'bash', 'zsh'"),
        (["conf=exp1", "runs=/proc/none", "-d"], "zephon doctor"),
        (["conf=exp1", "runs=nowhere://x"], "runs="),
        (["list", "runs=nowhere://x"], "nowhere"),
        (["conf=exp1", "plan"], "the verb comes first: zephon plan conf=exp1"),
        (["conf=exp1", "trainer.steps"], "set a field: trainer.steps=VALUE"),
        (["run", "exp1"], "zephon run conf=exp1; or go on with a run: zephon resume exp1"),
        (["plan", "exp1"], "zephon plan conf=exp1"),
        (["doctor", "exp1"], "zephon status exp1"),
        (["stop", "nodes=2"], "leave it out"),
        (["nodes=2"], "choose an experiment: conf=exp1"),
        (["conf=exp1", "scheduler=slurm"], "fix: options: kubernetes, local"),
    ],
)
def test_a_bad_command_is_refused_with_65_and_what_to_do(
    argv: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 65
    text = capsys.readouterr().err
    assert part in text
    assert "fix:" in text


def test_a_refused_command_leaves_nothing_behind(tmp_path: Path) -> None:
    for argv in (["conf=exp1", "nodes=3"], ["conf=nope"], ["plan", "conf=exp1"], ["doctor", "conf=exp1"], ["list"]):
        main(argv)
    assert not (tmp_path / "runs").exists()


def test_plan_prints_the_object_that_a_submit_sends_and_the_table_of_node_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "conf=exp1", "nodes=4"]) == 0
    text = capsys.readouterr().out
    assert '"app_id": "exp1-0001-' in text
    assert "a new run: nothing is promised yet" in text
    assert "with lanes.allow=uneven" in text
    assert "asked for" in text


def test_plan_twice_prints_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["plan", "conf=exp1"], ["plan", "conf=exp1", "--json"]):
        texts = []
        for _ in range(2):
            main(argv)
            texts.append(capsys.readouterr().out)
        assert texts[0] == texts[1]


def test_plan_for_a_cluster_needs_no_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "conf=exp1", "nodes=4", "scheduler=kubernetes", "scheduler.options.kubeconfig=/nowhere"]) == 0
    assert "kind: Job" in capsys.readouterr().out


def test_the_table_of_node_counts_says_whole_shared_uneven_and_impossible() -> None:
    from zephon.launch.config.compose import compose

    spec = compose(["conf=exp1", "elastic.nodes_max=18", "lanes.count=8", "trainer.microbatch_size=4"]).spec
    rows = {row.nodes: row for row in node_counts(spec)}
    assert {n for n, row in rows.items() if row.fits} == {1, 2, 4, 8}
    assert {n: rows[n].kind for n in (1, 3, 8, 16, 17)} == {1: "whole", 3: "uneven", 8: "whole", 16: "shared", 17: "impossible"}
    assert [rows[n].microbatches for n in (1, 2, 8)] == [8, 4, 1]
    assert rows[2].efficiency == 1.0
    assert rows[3].efficiency is not None
    assert 0.8 < rows[3].efficiency < 1.0


def test_cfg_job_prints_the_experiment_as_yaml_that_composes_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conf=exp1", "nodes=2", "--cfg", "job"]) == 0
    text = capsys.readouterr().out
    Path("again.yaml").write_text(text)
    assert main(["conf=./again.yaml", "--cfg", "job"]) == 0
    assert capsys.readouterr().out == text


def test_info_says_where_values_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conf=exp1", "tokenizer=bytes", "--info"]) == 0
    text = capsys.readouterr().out
    assert "#   tokenizer    bytes" in text
    assert "#   conf=exp1" in text


def test_info_names_the_file_or_the_argument_that_gave_each_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.yaml").write_text("defaults:\n  - override /data: stdlib\nglobal_batch_size: 16\ntrainer: {steps: 7}\n")
    overrides = ["conf=./mine.yaml", "trainer.seed=3", "scheduler.options={a: {b: 1}}", "data.datasets.web.path=x"]
    assert main([*overrides, "pipeline=best_fit", "pipeline.context_length=32", "--info"]) == 0
    text = capsys.readouterr().out
    found = {line.split("#")[0].strip(): line.split("# ")[-1] for line in text.splitlines() if not line.startswith("#")}
    assert found["steps: 7"] == "mine.yaml"
    assert found["seed: 3"] == found["b: 1"] == found["path: x"] == found["context_length: 32"] == "command line"
    assert found["path: stdlib://docs"] == "conf/data/stdlib.yaml"
    assert found["packing: best_fit"] == "conf/pipeline/best_fit.yaml"
    assert found["name: mine"] == "conf="
    assert found["eps: 1.0e-08"] == "default"
    Path("again.yaml").write_text(text)
    for conf in (overrides[0], "conf=./again.yaml"):
        more = [*overrides[1:], "pipeline=best_fit", "pipeline.context_length=32"] if conf == overrides[0] else []
        assert main([conf, *more, "--cfg", "job"]) == 0
    first, _, second = capsys.readouterr().out.partition("\nname: ")
    assert first.partition("\n")[2] == second.rstrip().partition("\n")[2]


def test_nothing_typed_gets_usage_and_verbs_and_no_complaint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert all(verb in text for verb in VERBS)
    assert "usage: zephon" in text
    assert len(text.splitlines()) < 32


def test_plan_for_a_cluster_names_the_run_directory_of_the_nodes_and_not_this_machines_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    volume = ["scheduler.options.volumes.data.mount=/only/nodes", "scheduler.options.volumes.data.claim=shared"]
    assert main(["plan", "conf=exp1", "scheduler=kubernetes", "runs=/only/nodes/runs", *volume]) == 0
    text = capsys.readouterr().out
    assert "attempt 1 in /only/nodes/runs/exp1" in text
    assert str(tmp_path) not in text


def test_list_as_json_of_nothing_is_an_empty_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_doctor_finds_what_is_wrong_with_an_experiment_and_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "conf=bytes", "data.datasets.web.path=/nowhere"]) == 2
    text = capsys.readouterr().out
    assert "dataset web" in text
    assert "/nowhere" in text
    assert main(["doctor", "conf=bytes"]) == 0


def test_plan_and_doctor_say_when_the_data_has_fewer_documents_than_lanes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["conf=bytes"]
    for name in ("web", "docs", "code"):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"text": "a few words of {name}"}}\n')
        argv.append(f"data.datasets.{name}.path={tmp_path / name}.jsonl")
    assert main(["plan", *argv]) == 0
    told = "the data holds 3 documents for"
    assert f"note: {told}" in " ".join(capsys.readouterr().out.split())
    assert main(["plan", *argv, "--json"]) == 0
    assert any(remark.startswith(told) for remark in json.loads(capsys.readouterr().out)["cluster"])
    main(["doctor", *argv])
    printed = " ".join(capsys.readouterr().out.split())
    assert "lanes warning" in printed
    assert "use at most 3 lanes" in printed


def test_the_launchers_own_arguments_are_kept_apart_from_the_experiments() -> None:
    arguments = parse(["run", "conf=a", "allow=[model,optimizer.lr]", "fork=b", "detach=true", "x.y=1"])
    assert arguments.overrides == ("conf=a", "x.y=1")
    assert arguments.allow == ["model", "optimizer.lr"]
    assert (arguments.fork, arguments.detach) == ("b", True)
