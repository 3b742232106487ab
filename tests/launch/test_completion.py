"""Completion: made from the tables of the command line, so a flag, key or verb that is declared is completed."""

from __future__ import annotations

from pathlib import Path

import pytest

from zephon.launch.cli.completion import BASH, ZSH, candidates, script
from zephon.launch.cli.grammar import FLAGS, VERBS, flags_of
from zephon.launch.config.packaged import groups_in
from zephon.launch.config.schema import field_names
from zephon.run.directory import RunDir


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("runs/first", "runs/second", "other/third"):
        RunDir(str(tmp_path / name)).write_json("attempts", "0001", "spec.json", data={})


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("zephon conf=e", ["conf=exp1"]),
        ("zephon st", ["stages.order=", "stages.own=", "stages=", "status", "stop"]),
        ("zephon run tokenizer=g", ["tokenizer=gpt2"]),
        ("zephon conf=exp1 lanes.al", ["lanes.allow="]),
        ("zephon lanes.allow=", ["lanes.allow=shared", "lanes.allow=uneven", "lanes.allow=whole"]),
        ("zephon trainer.compile=", ["trainer.compile=false", "trainer.compile=true"]),
        ("zephon --det", ["--detach"]),
        ("zephon 'open", []),
        ("zephon logs --level ", ["debug", "error", "info", "warning"]),
        ("zephon logs --level w", ["warning"]),
        ("zephon run --cfg ", ["job"]),
        ("zephon --completion ", ["bash", "zsh"]),
        ("zephon --config-dir ", []),
        ("zephon status ", ["first", "runs=", "second"]),
        ("zephon status runs=other ", ["runs=", "third"]),
        ("zephon rescale first ", ["first", "nodes=", "runs=", "second"]),
        ("zephon list ", ["runs="]),
        ("zephon help re", ["report", "rescale", "resume"]),
        ("zephon ver", ["verify", "version"]),
        ("zephon rm f", ["first"]),
        ("zephon verify f", ["first"]),
        ("zephon -d plan all", ["allow="]),
        ("zephon plan fo", []),
        ("zephon resume stages=", ["stages=full", "stages=train"]),
    ],
)
def test_a_line_is_completed_with_what_may_follow(line: str, expected: list[str]) -> None:
    assert candidates(line) == expected


@pytest.mark.parametrize("verb", VERBS)
def test_all_flags_of_a_verb_are_completed_and_no_others(verb: str) -> None:
    assert candidates(f"zephon {verb} --") == sorted(flags_of(verb))


@pytest.mark.parametrize("verb", VERBS)
def test_all_arguments_of_a_verb_are_completed(verb: str) -> None:
    declared, listed = VERBS[verb], set(candidates(f"zephon {verb} "))
    assert {f"{key}=" for key in declared.keys} <= listed
    assert ({"first", "second"} <= listed) == (declared.names[:1] == ("RUN",))
    assert ({f"{name}=" for name in field_names()} <= listed) == (declared.fields != "none")
    assert ("conf=" in listed) == (declared.fields == "all")


def test_without_a_verb_it_completes_verbs_and_what_run_takes_and_flags_that_stand_alone() -> None:
    assert set(VERBS) | {"conf=", "nodes=", "fork="} <= set(candidates("zephon "))
    visible = {name for name in (*flags_of("run"), *flags_of("")) if not FLAGS[name].hidden}
    assert set(candidates("zephon --")) == visible


def test_experiments_and_groups_of_a_config_dir_are_completed(tmp_path: Path) -> None:
    for name in ("experiments/mine.yaml", "data/news.yaml"):
        path = tmp_path / "team" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")
    assert candidates("zephon plan --config-dir team conf=m") == ["conf=mine"]
    assert candidates("zephon plan --config-dir team data=n") == ["data=news"]
    assert "news" in groups_in("team")["data"]


def test_each_shell_gets_its_script() -> None:
    assert (script("bash"), script("zsh")) == (BASH, ZSH)
    assert all('zephon --complete "' in text for text in (BASH, ZSH))
