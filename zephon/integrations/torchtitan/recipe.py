"""A recipe names the data: the file of an experiment of ours, or ``package.module:function`` that returns a Pipeline.

A run of our launcher gives its attempt's ``spec.json``, in which everything is said.

The function may take any of ``tokenizer`` (a loaded `Tokenizer`), ``seq_len`` (inputs of a row) and ``infinite``, by these
names. Its pipeline ends before ``batch``: lanes, batches and ranks come from TorchTitan. An experiment may leave out what
TorchTitan decides; what it names has to be the same.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
from collections.abc import Callable
from typing import NamedTuple

import fsspec
import torch.distributed as dist

from zephon.errors import ConfigError
from zephon.launch.config.compose import compose, experiment_fields
from zephon.ops.op import Op
from zephon.ops.tokenizers import Tokenizer, load_tokenizer
from zephon.pipeline.experiment import held_out_pipeline, pipeline
from zephon.pipeline.options import LastStep
from zephon.pipeline.pipeline import Pipeline
from zephon.spec.experiment import RunSpec


class Wanted(NamedTuple):
    """What TorchTitan decides.

    Args:
        tokenizer: of its ``hf_assets_path``; None where it gives none, and the recipe's is taken.
        seq_len: inputs, and labels, of a row.
        infinite: whether the data is to go on for ever.
        global_batch_size: sequences of an optimizer step.
        lanes: None takes the recipe's.
        dp_world_size, dp_rank: of the data-parallel mesh.
    """

    tokenizer: Tokenizer | None
    seq_len: int
    infinite: bool
    global_batch_size: int
    lanes: int | None
    dp_world_size: int
    dp_rank: int


def load_recipe(recipe: str, wanted: Wanted, *, held_out: bool = False) -> Pipeline:
    """The pipeline of a recipe for one rank, with a lane's share of a step as its batch.

    Args:
        recipe: see the module's text.
        wanted: what TorchTitan decides.
        held_out: every row counts, also those behind the last whole step; of an experiment it is ``trainer.eval_data``.

    Raises:
        ConfigError: no such recipe, or one that contradicts TorchTitan's settings.
    """
    if not recipe:
        raise ConfigError(
            "--dataloader.recipe is not given",
            follows="nobody says what to train on",
            remedy="give the path of an experiment file, or package.module:function that returns a Pipeline",
        )
    if recipe.endswith(".json"):
        built = _of_spec(recipe, wanted, held_out)
    else:
        built = _of_function(recipe, wanted, held_out) if ":" in recipe else _of_experiment(recipe, wanted, held_out)
    _check_tokenizer(built, wanted)
    packed = built.definition.packed_length
    if packed != wanted.seq_len + 1:
        raise ConfigError(
            f"recipe {recipe!r} packs rows of {packed} tokens, --training.seq_len is {wanted.seq_len}",
            follows="the model would train on another context length than its configuration says",
            remedy=f"write pack_flat(context_length={wanted.seq_len}), or pipeline.context_length={wanted.seq_len}",
        )
    if wanted.infinite == (built.definition.finite_bytes is not None):
        raise ConfigError(
            f"recipe {recipe!r} {'ends' if wanted.infinite else 'never ends'}, and --dataloader.infinite is {wanted.infinite}",
            remedy="make its source repeat (exhausted_policy='repeat') or stop (stop_after_passes=1), "
            "or set --dataloader.infinite or --dataloader.no-infinite",
        )
    return built


def _of_function(recipe: str, wanted: Wanted, held_out: bool) -> Pipeline:
    function = _function(recipe)
    known = {"tokenizer": wanted.tokenizer, "seq_len": wanted.seq_len, "infinite": wanted.infinite}
    takes = inspect.signature(function).parameters
    built = function(**{name: value for name, value in known.items() if name in takes})
    if not isinstance(built, Pipeline) or built.definition.batching is not None:
        raise ConfigError(
            f"recipe {recipe!r} returned {'a pipeline with batch' if isinstance(built, Pipeline) else repr(built)[:80]}",
            follows="TorchTitan's numbers could not decide the batches",
            remedy="return a Pipeline that ends before .batch(...)",
        )
    options = built.definition.options
    lanes = _same("lanes", "--dataloader.lanes", options.canonical_replicas, wanted.lanes)
    size = _same("global_batch_size", "--training.global_batch_size", options.global_batch_size, wanted.global_batch_size)
    assert size is not None
    if lanes is None:
        raise ConfigError(
            "--dataloader.lanes is not given, and the recipe names no lanes",
            follows="the global batch would follow the number of GPUs",
            remedy=f"set --dataloader.lanes to a number that divides {size} and that every number of replicas will divide",
        )
    built.options(lanes=lanes, global_batch_size=size, dp_degree=wanted.dp_world_size, dp_group_id=wanted.dp_rank)
    return built.options(last_step=_last_step(held_out)).batch(max(1, size // lanes), drop_last=not held_out)


def _function(recipe: str) -> Callable[..., object]:
    module, _, name = recipe.partition(":")
    try:
        function: object = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"--dataloader.recipe {recipe!r}: {error}",
            remedy="give package.module:function, with its package on PYTHONPATH",
        ) from error
    if not callable(function):
        raise ConfigError(f"--dataloader.recipe {recipe!r} is no function", remedy="name a function that returns a Pipeline")
    return function


def _of_experiment(recipe: str, wanted: Wanted, held_out: bool) -> Pipeline:
    fields = experiment_fields(recipe)
    missing = {"global_batch_size": wanted.global_batch_size, "pipeline.context_length": wanted.seq_len, "trainer.steps": 1}
    given = [f"{key}={value}" for key, value in missing.items() if _at(fields, key) is None]
    spec = compose([f"conf={recipe}", *given]).spec
    size = _same("global_batch_size", "--training.global_batch_size", spec.global_batch_size, wanted.global_batch_size)
    named = spec.lanes.count if wanted.lanes is None or _at(fields, "lanes.count") is not None else None
    lanes = _same("lanes.count", "--dataloader.lanes", named, wanted.lanes)
    assert size is not None
    assert lanes is not None
    spec = dataclasses.replace(
        spec,
        global_batch_size=size,
        lanes=dataclasses.replace(spec.lanes, count=lanes),
        trainer=dataclasses.replace(spec.trainer, microbatch_size=max(1, size // lanes)),
    )
    tokenizer = wanted.tokenizer
    if tokenizer is None or _names_tokenizer(fields):
        tokenizer = load_tokenizer(spec.tokenizer.id, backend=spec.tokenizer.backend)
    return _built(spec, tokenizer, wanted, held_out)


def _of_spec(recipe: str, wanted: Wanted, held_out: bool) -> Pipeline:
    with fsspec.open(recipe) as file:
        spec = RunSpec.from_dict(json.loads(file.read()))
    spec = dataclasses.replace(
        spec, trainer=dataclasses.replace(spec.trainer, microbatch_size=max(1, spec.global_batch_size // spec.lanes.count))
    )
    return _built(spec, load_tokenizer(spec.tokenizer.id, backend=spec.tokenizer.backend), wanted, held_out)


def _built(spec: RunSpec, tokenizer: Tokenizer, wanted: Wanted, held_out: bool) -> Pipeline:
    rank, size = wanted.dp_rank, wanted.dp_world_size
    if held_out:
        built = held_out_pipeline(spec, tokenizer, dp_rank=rank, dp_size=size)
    else:
        built = pipeline(spec, tokenizer, dp_rank=rank, dp_size=size)
    return built.options(last_step=_last_step(held_out))


def _last_step(held_out: bool) -> LastStep:
    """Ranks tell each other when their data ends, where they can; what is validated on is small enough to be read by each."""
    return "auto" if dist.is_available() and dist.is_initialized() and not held_out else "same"


def _same(ours: str, theirs: str, given: int | None, wanted: int | None) -> int | None:
    """The number that two places give. Raises ConfigError where they differ."""
    if given is not None and wanted is not None and given != wanted:
        raise ConfigError(
            f"the recipe says {ours}={given}, and {theirs} is {wanted}",
            follows="the run would not have the global batches of its recipe",
            remedy=f"set {theirs} {given}, or change the recipe",
        )
    return wanted if given is None else given


def _at(fields: object, dotted: str) -> object:
    for name in dotted.split("."):
        fields = fields.get(name) if isinstance(fields, dict) else None
    return fields


def _names_tokenizer(fields: dict[str, object]) -> bool:
    choices = fields.get("defaults")
    entries = choices if isinstance(choices, list) else []
    chosen = any(isinstance(entry, dict) and any("tokenizer" in key for key in entry) for entry in entries)
    return chosen or _at(fields, "tokenizer.id") is not None


def _check_tokenizer(built: Pipeline, wanted: Wanted) -> None:
    for op in built.definition.ops:
        own = _tokenizer_of(op)
        if own is not None and wanted.tokenizer is not None and own.identity != wanted.tokenizer.identity:
            raise ConfigError(
                f"the recipe tokenizes with {own.id!r}, and --hf_assets_path holds {wanted.tokenizer.id!r}, which is another",
                follows="ids would not be those of the model's embedding",
                remedy="leave the recipe's tokenizer out, or point --hf_assets_path at it",
            )


def _tokenizer_of(op: Op) -> Tokenizer | None:
    tokenizer: Tokenizer | None = getattr(op, "tokenizer", None)
    return tokenizer
