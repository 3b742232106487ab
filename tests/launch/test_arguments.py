"""The command line as a table: each verb takes what its help names, and refuses everything else with the verbs that take it."""

from __future__ import annotations

import itertools
import os
import re
import resource
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.agent.toy import toy_spec
from zephon.errors import ConfigError
from zephon.launch.cli.arguments import Arguments, parse
from zephon.launch.cli.grammar import FLAGS, KEYS, NO_VERB, OWN_KEYS, VERBS, command, flags_of, verb_named
from zephon.launch.cli.help import help_text
from zephon.run.directory import RunDir

ROOT = Path(__file__).resolve().parents[2]
EVERY = ("", *VERBS)
NAMED = [verb for verb in VERBS if VERBS[verb].names]
TAKEN = [(verb, flag) for verb in EVERY for flag in flags_of(verb)]
NOT_TAKEN = [(verb, flag) for verb, flag in itertools.product(VERBS, FLAGS) if flag not in flags_of(verb)]
SWEEP = ("--limit", "--fail-fast")


def spelled(flag: str) -> list[str]:
    """The flag as it is typed, with a value that it accepts."""
    declared = FLAGS[flag]
    return [flag, *(declared.choices[:1] or (["1"] if declared.metavar else []))]


def typed(verb: str, *rest: str) -> list[str]:
    return [*([verb] if verb else []), *rest]


@pytest.mark.parametrize("verb", EVERY)
def test_the_help_of_a_verb_names_each_of_its_flags_and_no_other(verb: str) -> None:
    listed = help_text(verb)
    shown = {flag for flag in FLAGS if re.search(rf"^  (-\w, )?{flag}\b", listed, re.MULTILINE)}
    assert shown == {flag for flag in flags_of(verb) if not FLAGS[flag].hidden}
    for flag in shown:
        assert FLAGS[flag].help in listed


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_names_its_arguments_and_an_example_that_works(verb: str) -> None:
    listed, declared = help_text(verb), VERBS[verb]
    assert listed.startswith(f"usage: zephon {verb} ")
    assert declared.help in listed
    assert declared.example in listed
    shown = {key for key in KEYS if re.search(rf"^  {key}=", listed, re.MULTILINE)}
    assert shown == set(declared.keys)
    assert all(re.search(rf"^  {name} ", listed, re.MULTILINE) for name in declared.names)
    assert ("\n  key=value " in listed) == (declared.fields != "none")
    assert ("\nconfig groups" in listed) == (declared.fields == "all")
    program, *argv = declared.example.split()
    assert program == "zephon"
    assert parse(argv).verb == verb


def test_every_flag_and_every_key_is_taken_by_a_verb() -> None:
    taken = {flag for verb in EVERY for flag in flags_of(verb)}
    assert taken == set(FLAGS)
    assert {key for verb in VERBS.values() for key in verb.keys} == set(KEYS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_a_function_that_is_there(verb: str) -> None:
    module, _, function = VERBS[verb].call.partition(":")
    assert callable(getattr(import_module(module), function))


@pytest.mark.parametrize(("verb", "flag"), [(verb, flag) for verb, flag in TAKEN if verb])
def test_a_flag_that_a_verb_takes_is_read_before_and_after_the_verb(verb: str, flag: str) -> None:
    more = ["-m"] if flag in SWEEP else []
    field = flag.removeprefix("--").replace("-", "_")
    for argv in ([verb, *spelled(flag), *more], [*spelled(flag), *more, verb]):
        arguments = parse(argv)
        assert arguments.verb == verb
        assert getattr(arguments, field) != getattr(Arguments(verb=verb), field) or flag == "--level"


@pytest.mark.parametrize(("verb", "flag"), NOT_TAKEN)
def test_a_flag_that_a_verb_does_not_take_is_refused_with_all_verbs_that_take_it(verb: str, flag: str) -> None:
    takers = [command(other) for other in EVERY if flag in flags_of(other)]
    for argv in ([verb, *spelled(flag)], [*spelled(flag), verb]):
        with pytest.raises(ConfigError) as caught:
            parse(argv)
        assert caught.value.what == f"zephon {verb} does not take {flag}"
        assert caught.value.remedy == f"leave it out; {flag} is taken by {', '.join(takers)}"


@pytest.mark.parametrize(("verb", "key"), list(itertools.product(VERBS, [*KEYS, "trainer.steps"])))
def test_a_key_that_a_verb_does_not_take_is_refused_with_all_verbs_that_take_it(verb: str, key: str) -> None:
    def takes(other: str) -> bool:
        return key in VERBS[other].keys or (VERBS[other].fields != "none" and key not in OWN_KEYS)

    if takes(verb):
        arguments = parse([verb, f"{key}=1"])
        assert arguments.own == {key: "1"} or arguments.overrides == (f"{key}=1",)
        return
    with pytest.raises(ConfigError) as caught:
        parse([verb, f"{key}=1"])
    assert caught.value.what == f"zephon {verb} does not take '{key}=1'"
    assert f"{key}= is taken by {', '.join(command(other) for other in VERBS if takes(other))}" in caught.value.remedy


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - {"report"}))
def test_more_runs_than_a_verb_works_on_are_refused(verb: str) -> None:
    names = [f"run-{index}" for index in range(len(VERBS[verb].names) + 1)]
    assert parse([verb, *names[:-1]]).names == tuple(names[:-1])
    with pytest.raises(ConfigError, match=names[-1]):
        parse([verb, *names])


def test_a_report_takes_any_number_of_runs() -> None:
    assert parse(["report", "a", "b", "c", "d"]).names == ("a", "b", "c", "d")


@pytest.mark.parametrize("verb", EVERY)
@pytest.mark.parametrize("flag", ["--rnak", "--jsn", "-x", "--no-such-flag=3"])
def test_an_unknown_flag_is_refused_with_the_nearest_of_the_verb_or_all_of_them(verb: str, flag: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(typed(verb, flag, *([] if verb else ["--version"])))
    assert caught.value.what == f"{command(verb)} does not take {flag.partition('=')[0]}"
    near = re.search(r"did you mean '(.*)'", caught.value.remedy)
    known = {name for name in flags_of(verb) if not FLAGS[name].hidden}
    assert near is None or near[1] in known
    assert near is not None or all(name in caught.value.remedy for name in known)


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["-m", "-d"], "--detach has no effect with -m"),
        (["-m", "detach=true"], "--detach has no effect with -m"),
        (["-m", "--info"], "--info has no effect with -m"),
        (["-m", "--cfg", "job"], "--cfg has no effect with -m"),
        (["-m", "allow=[model]"], "allow= has no effect with -m"),
        (["-m", "fork=x"], "fork= has no effect with -m"),
        (["--limit", "2"], "--limit has no effect without -m"),
        (["--fail-fast"], "--fail-fast has no effect without -m"),
    ],
)
def test_flags_of_one_run_and_of_a_sweep_are_not_mixed(argv: list[str], part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(["conf=exp1", *argv])
    assert caught.value.what == part


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["logs", "--rank", "two"], "--rank: 'two' is not a whole number from 0"),
        (["logs", "--rank=-1"], "--rank: '-1' is not a whole number from 0"),
        (["logs", "--level", "warn"], "--level: invalid choice: 'warn'"),
        (["logs", "--rank"], "--rank: expected one argument"),
        (["-m", "--limit", "0"], "--limit: '0' is not a whole number from 1"),
        (["--cfg", "all", "conf=exp1"], "--cfg: invalid choice: 'all'"),
        (["plan", "--json=yes"], "--json: ignored explicit argument 'yes'"),
        (["logs", "--lev", "error"], "zephon logs does not take --lev"),
    ],
)
def test_a_value_that_a_flag_cannot_take_is_refused(argv: list[str], part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(argv)
    assert part in caught.value.what


def test_without_a_verb_it_is_run_and_flags_that_stand_alone_belong_to_no_verb() -> None:
    assert parse(["conf=exp1", "-d"]).verb == "run"
    assert parse(["-d"]).verb == "run"
    assert parse(["~data", "conf=exp1"]).verb == "run"
    for argv in (["--help"], ["-h"], ["--version"], ["--completion", "bash"], ["--complete", "zephon st"]):
        assert parse(argv).verb == ""
    assert parse(["conf=exp1", "--help"]).verb == "run"
    assert NO_VERB is verb_named("")


def test_the_value_of_a_flag_is_not_taken_for_the_verb() -> None:
    arguments = parse(["--config-dir", "plan", "doctor", "conf=exp1"])
    assert (arguments.verb, arguments.config_dir) == ("doctor", "plan")


def test_flags_and_arguments_may_come_in_any_order() -> None:
    argv = ["conf=exp1", "-d", "nodes=4", "--worker", "mine", "fork=b", "trainer.steps=3"]
    for order in itertools.islice(
        itertools.permutations([argv[:1], argv[1:2], argv[2:3], argv[3:5], argv[5:6], argv[6:]]), 200
    ):
        arguments = parse(["run", *itertools.chain(*order)])
        assert set(arguments.overrides) == {"conf=exp1", "nodes=4", "trainer.steps=3"}
        assert (arguments.detach, arguments.worker, arguments.fork) == (True, "mine", "b")


def test_help_is_shown_whatever_else_was_typed() -> None:
    for verb in VERBS:
        assert parse([verb, "--help", "exp1", "b", "c", "x=1"]).help


def test_help_and_version_may_be_typed_as_verbs() -> None:
    assert parse(["help"]) == parse(["--help"])
    assert parse(["version"]) == parse(["--version"])
    assert parse(["help", "stop"]) == parse(["stop", "--help"])
    with pytest.raises(ConfigError, match="'sotp' is not a verb"):
        parse(["help", "sotp"])


@pytest.mark.parametrize("word", ["stpo", "stopp", "sop", "rmm", "rn", "remove", "kill"])
def test_a_verb_that_ends_or_removes_a_run_is_never_suggested_for_another_word(word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse([word, "exp1"])
    near = re.search(r"did you mean '(.*?)'", caught.value.remedy)
    assert near is None or not VERBS[near[1]].ends
    assert f"verbs: {', '.join(sorted(VERBS))}" in caught.value.remedy
    assert {"data", "run", "stop"} <= set(VERBS)


@pytest.mark.parametrize(("word", "verb"), [("start", "run"), ("ls", "list"), ("statsu", "status"), ("resum", "resume")])
def test_a_word_for_a_verb_gets_the_verb(word: str, verb: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{verb}'"):
        parse([word])


@pytest.mark.parametrize(
    ("argv", "remedy"),
    [
        (["--nodes", "2", "conf=exp1"], "fields are written key=value: nodes=2"),
        (["rescale", "exp1", "--nodes=2"], "fields are written key=value: nodes=2"),
        (["conf=exp1", "--lr", "0.1"], "fields are written key=value: optimizer.lr=0.1"),
        (["conf=exp1", "--microbatch-size", "4"], "fields are written key=value: trainer.microbatch_size=4"),
    ],
)
def test_a_field_typed_as_a_flag_gets_the_argument_to_type(argv: list[str], remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(argv)
    assert caught.value.remedy == remedy


def test_an_argument_of_the_launcher_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="runs= is given twice"):
        parse(["list", "runs=a", "runs=b"])


TEXT = [
    [],
    ["--help"],
    ["help"],
    ["help", "run"],
    ["--completion", "bash"],
    ["--complete", "zephon "],
    ["--complete", "zephon run conf="],
    *([verb, "--help"] for verb in VERBS),
]
SHOWS = [
    ["--version"],
    ["version"],
    ["--complete", "zephon status "],
    ["list"],
    ["list", "--json"],
    ["status"],
    ["status", "toy", "--json"],
]


def test_what_only_shows_something_imports_no_heavy_library(tmp_path: Path) -> None:
    """One process for all of them: what an earlier one imports would fail it there, by name."""
    spec = toy_spec(tmp_path / "runs", name="toy", nodes=1)
    RunDir(str(tmp_path / "runs" / "toy")).write_json("attempts", "0001", "spec.json", data=spec.to_dict())
    code = f"""
import sys
from zephon.launch.cli.main import main
for argv in {TEXT + SHOWS!r}:
    assert main(argv) == 0, argv
    heavy = {{"hydra", "omegaconf", "torch", "torchx", "kubernetes", "numpy", "pyarrow", "antlr4", "psutil"}}
    heavy |= {{"fsspec", "asyncio"}}
    if argv in {TEXT!r}:
        heavy |= {{"rich"}}
    heavy &= set(sys.modules)
    assert not heavy, (argv, heavy)
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path / "state")}
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
def test_what_only_shows_something_answers_within_a_quarter_of_a_second_of_processor_time(tmp_path: Path) -> None:
    """As installed, where modules are compiled once. The least of three, since neighbours on the machine add to all of them."""
    spec = toy_spec(tmp_path / "runs", name="toy", nodes=1)
    RunDir(str(tmp_path / "runs" / "toy")).write_json("attempts", "0001", "spec.json", data=spec.to_dict())
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path / "state")}
    env |= {"PYTHONPYCACHEPREFIX": str(tmp_path / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}
    took = {}
    for argv in [["--help"], *SHOWS]:
        seconds = []
        for _ in range(3):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            command = [sys.executable, "-m", "zephon.launch", *argv]
            subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, timeout=60, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        took[" ".join(argv)] = round(min(seconds), 3)
    assert max(took.values()) < 0.25, took


PAGES = sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md"])


def commands_in(text: str) -> list[str]:
    """Command lines of ``zephon`` in a page: in code blocks and in backticks; one that leaves something open is left out."""
    blocks = re.findall(r"```[a-z]*\n(.*?)```", text, re.DOTALL)
    spans = re.findall(r"`((?:zephon|python -m zephon\.launch) [^`]*)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    lines = [line.strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()] + spans
    starts, open_ends = ("zephon ", "python -m zephon.launch "), ("...", "[", "VERB")
    return [line.partition(" #")[0] for line in lines if line.startswith(starts) and not any(end in line for end in open_ends)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_line_in_the_docs_is_one_that_its_verb_takes(page: Path) -> None:
    lines = commands_in(page.read_text("utf-8"))
    assert len(lines) >= (8 if page.name == "launching.md" else 0)
    for line in lines:
        parse(shlex.split(line.replace("python -m zephon.launch", "zephon").split(" | ")[0].split("&&")[0])[1:])


def test_the_page_about_launching_has_a_row_for_each_verb_and_names_each_of_its_flags() -> None:
    text = (ROOT / "docs" / "launching.md").read_text("utf-8")
    rows = "\n".join(line for line in text.splitlines() if line.startswith("| `"))
    assert all(re.search(rf"`{verb}\b", rows) for verb in VERBS)
    missing = [flag for flag in FLAGS if not FLAGS[flag].hidden and flag not in text and (FLAGS[flag].short or "?") not in text]
    assert not missing
