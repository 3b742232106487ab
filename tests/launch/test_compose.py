"""Composition: groups, precedence, plain values, and refusals that name the nearest key."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zephon.errors import ConfigError
from zephon.launch.config.compose import Composed, auto_lanes, compose
from zephon.launch.config.packaged import groups_in


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


MINE = "global_batch_size: 16\ntrainer: {steps: 7}\ndata: {datasets: {web: {path: x}}}\n"

HALF = "global_batch_size: 16\ndata: {datasets: {web: {path: x}}}\n"


def test_conf_picks_an_experiment_and_the_other_arguments_set_fields() -> None:
    spec = compose(["conf=exp1", "nodes=4", "trainer.microbatch_size=2"]).spec
    assert (spec.name, spec.nodes, spec.trainer.microbatch_size, spec.tokenizer.id) == ("exp1", 4, 2, "gpt2")
    assert {name: (data.path, data.weight) for name, data in spec.data.datasets.items()} == {
        "docs": ("stdlib://docs", 1.0),
        "code": ("stdlib://code", 1.0),
    }
    assert (spec.pipeline.context_length, spec.lanes.count, spec.global_batch_size, spec.trainer.steps) == (128, 8, 16, 60)


@pytest.mark.parametrize("name", groups_in(None)["experiments"])
def test_every_packaged_experiment_composes(name: str) -> None:
    assert compose([f"conf={name}"]).spec.name == name


@pytest.mark.parametrize(
    ("group", "option"), [(g, o) for g, options in groups_in(None).items() if g != "experiments" for o in options]
)
def test_every_option_of_every_group_composes(group: str, option: str) -> None:
    overrides = ["conf=exp1", f"{group}={option}", "trainer.steps=9"]
    overrides += ["data.datasets.text.path=x"] if (group, option) == ("data", "jsonl") else []
    overrides += ["elastic.nodes_max=4", "global_batch_size=24"] if (group, option) == ("lanes", "auto") else []
    composed = compose(overrides)
    assert composed.choices[group] == option


def test_precedence_is_spec_then_group_then_experiment_then_command_line(tmp_path: Path) -> None:
    from zephon.spec.experiment import CheckpointSpec

    values = [CheckpointSpec().keep_last]
    write(tmp_path / "checkpoint" / "mine.yaml", "keep_last: 11\n")
    write(tmp_path / "experiments" / "low.yaml", "defaults:\n  - override /checkpoint: mine\n" + MINE)
    write(
        tmp_path / "experiments" / "high.yaml",
        "defaults:\n  - override /checkpoint: mine\ncheckpoint: {keep_last: 12}\n" + MINE,
    )
    typed = (["conf=low"], ["conf=high"], ["checkpoint.keep_last=13", "conf=high"])
    values += [compose(overrides, config_dir=str(tmp_path)).spec.checkpoint.keep_last for overrides in typed]
    assert values == [3, 11, 12, 13]


def test_a_group_on_the_command_line_beats_the_experiments_choice() -> None:
    assert compose(["conf=exp1", "tokenizer=bytes"]).spec.tokenizer.id == "bytes"
    assert compose(["tokenizer=bytes", "conf=exp1"]).spec.tokenizer.id == "bytes"


def test_any_file_may_be_an_experiment_without_a_header_and_names_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "my" / "tiny.yaml", "defaults:\n  - override /tokenizer: bytes\n" + MINE)
    monkeypatch.chdir(tmp_path)
    for form in ("./my/tiny.yaml", "my/tiny.yaml", str(tmp_path / "my" / "tiny.yaml")):
        spec = compose([f"conf={form}"]).spec
        assert (spec.name, spec.tokenizer.id, spec.trainer.steps) == ("tiny", "bytes", 7)


def test_a_config_dir_adds_groups_and_experiments_and_wins_over_the_packaged(tmp_path: Path) -> None:
    write(tmp_path / "data" / "mine.yaml", "datasets:\n  news: {path: /data/news, weight: 2.0}\n")
    write(tmp_path / "tokenizer" / "gpt2.yaml", "id: gpt2\nspecial_tokens: none\n")
    write(tmp_path / "plain.yaml", MINE)
    composed = compose(["conf=plain", "data=mine"], config_dir=str(tmp_path))
    assert list(composed.spec.data.datasets) == ["news", "web"]
    assert composed.spec.tokenizer.special_tokens == "none"
    assert "mine" in groups_in(str(tmp_path))["data"]


PLAIN = [
    "out/epoch=9-step=80.pt",
    "a:1,b:1",
    "me@x.org",
    "50%",
    "a#b",
    "it's",
    "x{y}",
    "(a)",
    "a b",
    "[x",
    "back\\slash",
    "=",
    "'",
]


@pytest.mark.parametrize("value", PLAIN)
def test_values_of_text_fields_are_taken_plainly(value: str) -> None:
    composed = compose(["conf=exp1", f"data.datasets.web.path={value}", f"trainer.wandb={value}"])
    assert composed.spec.data.datasets["web"].path == value
    assert composed.spec.trainer.wandb == value


@pytest.mark.parametrize("value", ["a:b=c,d", "registry/x@sha256:ab", "8Gi", "a,b"])
def test_values_of_free_options_are_taken_plainly(value: str) -> None:
    spec = compose(["conf=exp1", "scheduler=kubernetes", f"scheduler.options.image={value}"]).spec
    assert spec.scheduler.options["image"] == value


def test_free_options_take_numbers_lists_and_mappings() -> None:
    spec = compose(
        ["conf=exp1", "scheduler.options.cpu=4", "scheduler.options.list=[a,b]", "scheduler.options.env={A: b}"]
    ).spec
    assert spec.scheduler.options == {"cpu": 4, "list": ["a", "b"], "env": {"A": "b"}}


def test_a_mapping_may_be_given_as_a_whole_and_is_merged() -> None:
    spec = compose(
        ["conf=exp1", "scheduler.options={a: 1, b: {c: d}}", "scheduler.options.e=2", "data.datasets={web: {path: x}}"]
    ).spec
    assert spec.scheduler.options == {"a": 1, "b": {"c": "d"}, "e": 2}
    assert set(spec.data.datasets) == {"docs", "code", "web"}


def test_optional_fields_take_null() -> None:
    assert compose(["conf=exp1", "optimizer.clip=null", "trainer.wandb=null"]).spec.optimizer.clip is None


def test_numbers_that_look_like_text_stay_text_in_text_fields() -> None:
    spec = compose(["conf=exp1", "name=1e3", "trainer.wandb=true", "data.datasets.d.path=007"]).spec
    assert (spec.name, spec.trainer.wandb, spec.data.datasets["d"].path) == ("1e3", "true", "007")


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("nodess=4", "did you mean 'nodes'?"),
        ("lanes.cout=4", "did you mean 'lanes.count'?"),
        ("trainer.microbatch=4", "did you mean 'trainer.microbatch_size'?"),
        ("context_length=4", "did you mean 'pipeline.context_length'?"),
        ("lr=0.1", "did you mean 'optimizer.lr'?"),
        ("steps=100", "did you mean 'trainer.steps'?"),
        ("every=10", "did you mean 'data.controller.every' or 'checkpoint.every'"),
        ("data.datasets.docs.pathh=x", "did you mean 'data.datasets.docs.path'?"),
        ("tokenizer=gtp2", "did you mean 'gpt2'?"),
        ("lanes=16", "lanes.FIELD=VALUE"),
        ("nodes.count=1", "set nodes=VALUE"),
        ("nodes=four", "nodes"),
        ("nodes=1,2", "-m"),
        ("data.datasets=web", "data.datasets"),
        ("optimizer.schedule=cosin", "did you mean 'cosine'?"),
        ("nodes=0", "at least 1"),
        ("nodes=99", "elastic.nodes_max"),
        ("global_batch_size=12", "multiple of lanes"),
        ("nodes=3", "1, 2, 4, 8"),
        ("name=a/b", "letters, digits"),
        ("name=", "letters, digits"),
        ("nodes", "key=value"),
        ("optimizer.lr=[1,", "cannot be read"),
    ],
)
def test_a_bad_override_is_refused_with_what_to_do(override: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(["conf=exp1", override])
    assert part in str(caught.value)


@pytest.mark.parametrize("name", ["exp", "nope", "EXP1"])
def test_an_unknown_experiment_lists_the_candidates(name: str) -> None:
    with pytest.raises(ConfigError, match=r"experiments: bytes, exp1"):
        compose([f"conf={name}"])


def test_an_experiment_with_its_own_datasets_gets_no_others_mixed_in(tmp_path: Path) -> None:
    assert list(compose([f"conf={write(tmp_path / 'my.yaml', MINE)}"]).spec.data.datasets) == ["web"]
    path = write(tmp_path / "none.yaml", "global_batch_size: 16\ntrainer: {steps: 7}\n")
    with pytest.raises(ConfigError, match=r"data\.datasets is empty"):
        compose([f"conf={path}"])


def test_a_misspelt_key_in_the_users_own_file_is_refused_with_file_and_nearest_key(tmp_path: Path) -> None:
    path = write(tmp_path / "my.yaml", MINE + "pipeline: {context_lenght: 5}\n")
    with pytest.raises(ConfigError) as caught:
        compose([f"conf={path}"])
    assert "pipeline.context_lenght" in caught.value.what
    assert str(path) in caught.value.what
    assert "pipeline.context_length" in caught.value.remedy


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [\n", "\tx: 1\n"])
def test_a_file_that_is_no_mapping_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "bad.yaml", text)
    with pytest.raises(ConfigError, match=r"bad\.yaml"):
        compose([f"conf={path}"])


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: the file does not exist"):
        compose([f"conf={tmp_path}/none.yaml"])


def test_all_missing_values_are_listed_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "my.yaml", "defaults:\n  - override /data: jsonl\nglobal_batch_size: ???\n")
    with pytest.raises(ConfigError) as caught:
        compose([f"conf={path}"])
    for name in ("global_batch_size", "trainer.steps", "data.datasets.text.path"):
        assert name in caught.value.what
    assert "3 values" in caught.value.what


def test_unresolvable_references_are_refused_before_anything_starts(tmp_path: Path) -> None:
    for reference in ("${oc.env:ZEPHON_NOT_SET}", "${nowhere}", "${runs"):
        path = write(tmp_path / "my.yaml", f"{HALF}trainer: {{steps: 3, wandb: '{reference}'}}\n")
        with pytest.raises(ConfigError, match=r"wandb"):
            compose([f"conf={path}"])


def test_references_are_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZEPHON_TEST_PROJECT", "from-env")
    path = write(tmp_path / "my.yaml", HALF + "trainer: {steps: 3, wandb: '${oc.env:ZEPHON_TEST_PROJECT}-${name}'}\n")
    assert compose([f"conf={path}", "name=x"]).spec.trainer.wandb == "from-env-x"


def test_nothing_is_written_where_the_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    compose(["conf=exp1"])
    assert os.listdir(tmp_path) == []


def test_composing_twice_gives_the_same_spec() -> None:
    def made() -> Composed:
        return compose(["conf=exp1", "nodes=2", "data.datasets.web.path=x"])

    assert made().spec.sha256() == made().spec.sha256()


@pytest.mark.parametrize(("low", "high", "lanes"), [(1, 4, 12), (2, 4, 12), (4, 4, 4), (1, 1, 1)])
def test_auto_lanes_are_the_smallest_common_multiple_of_the_range(low: int, high: int, lanes: int) -> None:
    assert auto_lanes(low, high, 1, 1, 24) == lanes


def test_auto_lanes_that_do_not_divide_the_global_batch_are_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"840 lanes .* global_batch_size=16"):
        compose(["conf=exp1", "lanes=auto"])


def refusal(overrides: list[str], config_dir: str | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        compose(overrides, config_dir=config_dir)
    return str(caught.value)


def test_a_key_or_group_that_is_given_twice_is_refused_with_both() -> None:
    assert "data.seed is given twice: data.seed=1 and data.seed=2" in refusal(["conf=bytes", "data.seed=1", "data.seed=2"])
    assert "model is given twice" in refusal(["conf=bytes", "model=tiny", "model=small"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "defaults:\n- override /model: a\n- override /model: b",
            "line 3: the group /model is chosen a second time, after line 2",
        ),
        ("defaults:\n- optioal /data: stdlib", "line 2: 'optioal /data': 'optioal' is no word of a defaults list"),
        ("name: x\nhydra:\n  sweeper:\n    params: {data.seed: 1}", "line 2: hydra: nothing reads these settings here"),
        ("data:\n  datasets:\n    no: {path: stdlib://docs}", "line 3: YAML reads the name no as False"),
        (
            "data:\n  datasets:\n    a: {path: stdlib://docs}\n    1: {path: stdlib://docs}",
            "line 4: YAML reads the name 1 as",
        ),
    ],
)
def test_what_a_file_would_lose_in_silence_is_refused_with_file_line_and_word(tmp_path: Path, text: str, words: str) -> None:
    path = write(tmp_path / "mine.yaml", text + "\n")
    assert f"{path}, {words}" in refusal([f"conf={path}"])


def test_a_misspelt_word_of_a_defaults_list_names_the_right_one(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.yaml", "defaults:\n- overide /model: tiny\n")
    assert "did you mean 'override'?" in refusal([f"conf={path}"])


def test_a_chosen_file_of_the_users_own_folder_is_looked_at_too(tmp_path: Path) -> None:
    write(tmp_path / "model" / "mine.yaml", "defaults:\n- overide /x: y\ndim: 32\n")
    assert "'overide' is no word" in refusal(["conf=bytes", "model=mine"], config_dir=str(tmp_path))


def test_a_ratio_for_the_mixture_is_taken_in_both_spellings() -> None:
    for given in ("data.tokens_per_byte={docs: 0.3}", "data.tokens_per_byte.docs=0.3"):
        assert compose(["conf=bytes", given]).spec.data.tokens_per_byte == {"docs": 0.3}


def test_names_that_are_no_text_or_have_dots_are_taken_or_refused_with_the_reason() -> None:
    assert "1e3" in compose(["conf=bytes", "data.datasets.1e3.path=stdlib://docs"]).spec.data.datasets
    assert "c4.en" in compose(["conf=bytes", "data.datasets={c4.en: {path: stdlib://docs}}"]).spec.data.datasets
    assert "is read as 1000.0, which is no text" in refusal(["conf=bytes", "data.datasets={1e3: {path: x}}"])
    with_dot = refusal(["conf=bytes", "data.datasets.c4.en.path=x"])
    assert "a name with a dot in it is written data.datasets={c4.en: {...}}" in with_dot
