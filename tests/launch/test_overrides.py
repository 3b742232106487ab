"""``key=value`` arguments: how they are split, quoted for Hydra, read by the field's type, and refused."""

from __future__ import annotations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon.errors import ConfigError
from zephon.launch.config.overrides import Override, alternatives, below_mapping, is_file, quote, split, to_hydra, to_tree

GROUPS = {"data": ["stdlib", "jsonl"], "tokenizer": ["bytes", "gpt2"], "data/extra": ["more"]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nodes=4", ("", "nodes", "4")),
        ("a.b=c=d", ("", "a.b", "c=d")),
        ("name=", ("", "name", "")),
        ("+new.key=1", ("+", "new.key", "1")),
        ("++new.key=1", ("++", "new.key", "1")),
        ("~data", ("~", "data", None)),
        ("a.b=line\nbreak", ("", "a.b", "line\nbreak")),
    ],
)
def test_an_override_is_split_at_the_first_equals_sign(text: str, expected: tuple[str, str, str | None]) -> None:
    override = split(text)
    assert (override.prefix, override.key, override.value) == expected
    assert override.text == text


@pytest.mark.parametrize("text", ["nodes", "a b=c", "=x", "+x"])
def test_what_is_not_key_equals_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not of the form key=value"):
        split(text)


@settings(deadline=None)  # the first call loads the grammar
@given(st.text(max_size=30))
def test_quoted_text_is_read_back_by_hydra_as_it_was(text: str) -> None:
    if "\n" in text or "\r" in text or not text.isprintable():
        return
    value = OverridesParser.create().parse_override(f"key={quote(text)}").value()
    assert getattr(value, "text", value) == text


@settings(deadline=None)  # the first call loads the grammar
@given(st.text(alphabet="abc=,@%#{}()[]'\"&;:/\\ .-$0129", max_size=20))
def test_a_text_field_takes_any_text_plainly(text: str) -> None:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return  # the user has quoted it
    if text in ("null", "None", "~"):
        return
    assert to_tree(split(f"trainer.wandb={text}")) == {"trainer": {"wandb": text}}


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("nodes=4", {"nodes": 4}),
        ("optimizer.lr=1e-3", {"optimizer": {"lr": 0.001}}),
        ("optimizer.clip=null", {"optimizer": {"clip": None}}),
        ("stages.order=[doctor,train]", {"stages": {"order": ["doctor", "train"]}}),
        ("data.datasets.web.path=a=b,c", {"data": {"datasets": {"web": {"path": "a=b,c"}}}}),
        ("data.datasets={web: {path: x}}", {"data": {"datasets": {"web": {"path": "x"}}}}),
        ("scheduler.options.cpu=4", {"scheduler": {"options": {"cpu": 4}}}),
        ("scheduler.options.image=registry/x@sha256:ab", {"scheduler": {"options": {"image": "registry/x@sha256:ab"}}}),
    ],
)
def test_a_value_is_read_by_the_type_of_its_field(text: str, tree: dict[str, object]) -> None:
    assert to_tree(split(text)) == tree


@pytest.mark.parametrize(
    ("text", "hydra"),
    [
        ("nodes=4", "nodes=4"),
        ("name=a,b", "name='a,b'"),
        ("name='quoted'", "name='quoted'"),
        ("tokenizer=gpt2", "tokenizer=gpt2"),
        ("data/extra=more", "data/extra=more"),
        ("scheduler.options.cpu=4", "++scheduler.options.cpu=4"),
        ("scheduler.options.image=a:b=c,d", "++scheduler.options.image='a:b=c,d'"),
        ("~data", "~data"),
        ("+data=jsonl", "+data=jsonl"),
    ],
)
def test_an_override_becomes_one_of_hydras_grammar(text: str, hydra: str) -> None:
    assert to_hydra(split(text), GROUPS) == hydra


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("tokenizer=gtp2", "did you mean 'gpt2'?"),
        ("tokenizer=16", "tokenizer.FIELD=VALUE"),
        ("nothing/here=x", "is not a config group"),
        ("lanes=16", "lanes.FIELD=VALUE"),
        ("nodes=1,2", "add -m for a sweep"),
        ("optimizer.lr=[1,", "cannot be read"),
        ("nodess=3", "did you mean 'nodes'?"),
    ],
)
def test_an_override_that_cannot_work_is_refused_with_what_to_do(text: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        to_hydra(split(text), GROUPS)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("data.datasets.web.path=x", True),
        ("data.datasets={web: {path: x}}", True),
        ("data.datasets=web", False),
        ("+data.datasets.web.path=x", False),
        ("trainer.steps=3", False),
        ("~data.datasets.web", False),
    ],
)
def test_fields_of_an_entry_of_a_typed_mapping_are_told_apart(text: str, expected: bool) -> None:
    assert below_mapping(split(text)) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b=1", ["a.b=1"]),
        ("a.b=1,2", ["a.b=1", "a.b=2"]),
        ("+a.b=1,2", ["+a.b=1", "+a.b=2"]),
        ("a.b=range(1,4)", ["a.b=1", "a.b=2", "a.b=3"]),
        ("a.b=choice(x,y)", ["a.b=x", "a.b=y"]),
        ("a.b=choice(x)", ["a.b=x"]),
        ("a.b=[1,2]", ["a.b=[1,2]"]),
        ("a.b=p=1,p=2", ["a.b=p=1", "a.b=p=2"]),
        ("a.b=p=1", ["a.b=p=1"]),
    ],
)
def test_alternatives_of_a_sweep_are_those_of_hydra_and_plain_commas(text: str, expected: list[str]) -> None:
    assert alternatives(text) == expected


def test_a_whole_mapping_is_one_that_begins_with_a_brace() -> None:
    assert Override("a={}", "", "a", "{}").is_whole
    assert not Override("a=x", "", "a", "x").is_whole
    assert not Override("~a", "~", "a", None).is_whole


@pytest.mark.parametrize(
    ("value", "expected"), [("exp1", False), ("./exp1", True), ("exp.yaml", True), ("~/x", True), ("/x", True)]
)
def test_an_experiment_is_a_file_by_its_form(value: str, expected: bool) -> None:
    assert is_file(value) is expected
