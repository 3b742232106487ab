"""The public face: what an editor shows of it, and that no method takes what it does not name."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

import pytest

from zephon import Dataset, InMemoryShard, MixtureSpec, Pipeline, SampleBatch, StaticMixtureWorkSource, TokenEstimation
from zephon.batch import TrainingOptions
from zephon.errors import ConfigError
from zephon.ops.balance import EnsureMixture
from zephon.ops.chat import TokenizeChat
from zephon.ops.op import Op
from zephon.ops.pack import PackFlat, PackSequences
from zephon.ops.shuffle import Shuffle
from zephon.ops.tokenize import Tokenize
from zephon.ops.transform import DecodeText, MapTransform, StatefulTransform
from zephon.pipeline.chain import UNCHANGED
from zephon.pipeline.options import Options

PUBLIC = (Pipeline, SampleBatch, Dataset, StaticMixtureWorkSource, MixtureSpec, TokenEstimation)
OPS: dict[str, type[Op]] = {
    kind.name: kind
    for kind in (
        DecodeText,
        MapTransform,
        StatefulTransform,
        Tokenize,
        TokenizeChat,
        PackFlat,
        PackSequences,
        Shuffle,
        EnsureMixture,
    )
}


def methods() -> Iterator[tuple[type, str, Callable[..., Any]]]:
    """Every public method and constructor, with the class whose text explains it."""
    for kind in PUBLIC:
        for name, member in inspect.getmembers(kind, inspect.isfunction):
            made_by_others = name == "__init__" and kind is Dataset  # users call from_path and from_dict
            if not made_by_others and (name == "__init__" or not name.startswith("_")):
                yield kind, name, member


METHODS = [pytest.param(kind, member, id=f"{kind.__name__}.{name}") for kind, name, member in methods()]


def parameters(member: Callable[..., Any]) -> list[inspect.Parameter]:
    return [parameter for name, parameter in inspect.signature(member).parameters.items() if name != "self"]


@pytest.mark.parametrize(("kind", "member"), METHODS)
def test_every_parameter_has_a_name_and_a_type(kind: type, member: Callable[..., Any]) -> None:
    for parameter in parameters(member):
        assert parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL), parameter
        assert parameter.annotation is not parameter.empty, parameter
        assert not re.search(r"\bAny\b", str(parameter.annotation)), parameter


@pytest.mark.parametrize(("kind", "member"), METHODS)
def test_every_parameter_is_explained(kind: type, member: Callable[..., Any]) -> None:
    text = (kind.__doc__ if member.__name__ == "__init__" else member.__doc__) or ""
    missing = [parameter.name for parameter in parameters(member) if not re.search(rf"\b{parameter.name}\b", text)]
    assert not missing


@pytest.mark.parametrize("name", OPS)
def test_a_method_and_its_op_have_the_same_parameters_and_defaults(name: str) -> None:
    shown = {parameter.name: parameter.default for parameter in parameters(getattr(Pipeline, name))}
    for other_way in ("tokenizer_id", "context_length"):  # to say what the op holds as tokenizer and max_length
        shown.pop(other_way, None)
    fields = {("name" if field.name == "label" else field.name): field for field in dataclasses.fields(OPS[name])}
    assert set(shown) == set(fields)
    for parameter, default in shown.items():
        if default is not inspect.Parameter.empty and fields[parameter].default is not dataclasses.MISSING:
            assert default == fields[parameter].default, parameter


def test_options_names_every_option_and_changes_only_those_that_are_given() -> None:
    shown = {parameter.name: parameter.default for parameter in parameters(Pipeline.options)}
    second_names = {"lanes"}
    assert [name for name in shown if name not in second_names] == [field.name for field in dataclasses.fields(Options)]
    assert set(shown.values()) == {UNCHANGED}
    pipeline = Pipeline(source()).options(max_workers=3, dp_degree=2).options(dp_group_id=1, max_workers=None)
    assert pipeline.definition.options == Options(dp_degree=2, dp_group_id=1)


def test_the_options_of_to_training_can_be_handed_on_as_a_dict() -> None:
    shown = [parameter.name for parameter in parameters(SampleBatch.to_training)]
    assert shown == list(TrainingOptions.__annotations__)


def source() -> StaticMixtureWorkSource:
    return StaticMixtureWorkSource([Dataset.from_dict("d", {"s": InMemoryShard([{"text": "abcd"}] * 9)})])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda p: p.options(runer="inline"), "options has no option 'runer'\n  fix: did you mean 'runner'"),
        (lambda p: p.options(runner="thread"), "options(runner='thread') is not one of 'threads', 'process', 'inline'"),
        (lambda p: p.options(on_error={"d": "skip"}), "options(on_error='skip') is not one of 'raise', 'quarantine'"),
        (lambda p: p.options(max_workers=-1), "options(max_workers=-1) is below 0"),
        (lambda p: p.options(deterministic=False), "the order costs nothing"),
        (lambda p: p.shuffle(bufer_size=3), "did you mean 'buffer_size'"),
        (lambda p: p.shuffle(0), "shuffle(buffer_size=0) is below 1"),
        (lambda p: p.batch(1, drop_lst=True), "did you mean 'drop_last'"),
        (lambda p: p.batch(0), "batch(microbatch_size=0) is below 1"),
        (lambda p: p.prefetch(0), "prefetch(buffer_size=0) is below 1"),
        (lambda p: p.pack_flat(1), "pack_flat(max_length=1) is below 2"),
        (lambda p: p.validate(strikt=True), "did you mean 'strict'"),
        (lambda p: p.skip(step=range(3)), "did you mean 'steps'"),
        (lambda p: p.to_torch_dataset(statefull=True), "did you mean 'stateful'"),
        (lambda p: next(iter(p.batch(1))).to_training(labels=True), "did you mean 'return_labels'"),
    ],
)
def test_what_is_not_known_is_an_error_that_names_what_is(call: Callable[[Any], object], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        call(Pipeline(source()).options(runner="inline"))
    assert says in str(caught.value)


def test_the_choices_of_a_parameter_are_in_its_type() -> None:
    hints = get_type_hints(Pipeline.pack_flat)
    assert "Literal['first_fit', 'best_fit', 'wrap', 'best_fit_wrap']" in str(hints["algorithm"])


def few(documents: int, policy: str) -> Pipeline:
    rows = [{"text": f"{i:0100d}"} for i in range(documents)]
    source = StaticMixtureWorkSource([Dataset.from_dict("few", {"s": InMemoryShard(rows)})], exhausted_policy=policy)
    made = Pipeline(source).options(max_workers=0, lanes=8, global_batch_size=8)
    return made.tokenize(tokenizer_id="bytes", field="text", special_tokens="none").pack_flat(100, algorithm="wrap").batch(1)


def test_a_small_dataset_has_steps_and_the_first_rows_are_no_copies_of_each_other() -> None:
    assert len(list(few(400, "stop"))) > 8 * 40
    rows = [batch.fields["input_ids"].tobytes() for batch in itertools.islice(few(400, "repeat"), 8)]
    assert len(set(rows)) == 8


def test_data_that_is_not_enough_is_told_at_the_start_and_before_the_first_step() -> None:
    with (
        pytest.warns(UserWarning, match="5 documents for 8 lanes"),
        pytest.warns(UserWarning, match="ends before the first step"),
    ):
        assert list(few(5, "stop")) == []
    assert "lane-idle" in few(5, "repeat").validate().codes
