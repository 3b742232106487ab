"""RunSpec: the frozen, typed, canonical form of one experiment, and which of its fields may change.

    pinned    defines the data stream: a difference is refused; ``fork=NAME`` starts a new run with it
    guarded   defines the model or its optimization: refused unless named in ``allow``
    free      performance and placement: never in the fingerprint

A field's kind stands beside its default, so that a new field must say what it is. A *late* field came after the first runs:
its default is what those runs did and must never change, and ``fields_of`` and ``canonical_json`` leave it out where it has
its default, so that older contracts, checkpoints, records and hashes stay valid. ``RunSpec.from_dict`` rejects unknown
keys and wrong types with the full dotted name; ``canonical_json`` has sorted keys and no floats that print differently.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from zephon.errors import ConfigError, nearest
from zephon.spec.fields import (
    Above,
    AtLeast,
    LanesAllow,
    NotNegative,
    OnError,
    Packing,
    Positive,
    RunnerName,
    Seconds,
    Share,
    SpecialTokens,
    check,
)

Kind = Literal["pinned", "guarded", "free"]
SpecField = dataclasses.Field[Any]


def _field(kind: Kind, default: object, late: bool) -> Any:
    held = {"default_factory": lambda: dict(default)} if isinstance(default, dict) else {"default": default}
    return dataclasses.field(**held, metadata={"kind": kind, "late": late})


def pinned(default: object = dataclasses.MISSING, *, late: bool = False) -> Any:
    """A field that defines the data stream."""
    return _field("pinned", default, late)


def guarded(default: object = dataclasses.MISSING, *, late: bool = False) -> Any:
    """A field that defines the model or its optimization."""
    return _field("guarded", default, late)


def free(default: object = dataclasses.MISSING, *, late: bool = False) -> Any:
    """A performance or placement setting."""
    return _field("free", default, late)


class Spec:
    """Base of the spec dataclasses: their values are checked against their annotations once, when they are made."""

    def __post_init__(self) -> None:
        check(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, object], *, at: str = "") -> Self:
        """Builds from plain containers; unknown keys, missing keys and wrong types are errors with the dotted name."""
        built = _build(cls, data, at)
        assert isinstance(built, cls)
        return built

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]

    def canonical_json(self) -> str:
        """Sorted keys, no spaces, shortest float form; equal specs give equal text."""
        return json.dumps(_written(self), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

    def sha256(self) -> str:
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetSpec(Spec):
    """``on_error``: what happens to a document that cannot be used; None follows ``data.on_error``."""

    path: str = pinned()
    format: str | None = pinned(None)
    field: str = pinned("text")
    weight: Annotated[float, AtLeast(0)] = pinned(1.0)
    on_error: OnError | None = pinned(None, late=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSpec(Spec):
    """``quarantine_budget``: documents that a lane may drop before the run ends, where ``on_error`` is quarantine."""

    datasets: dict[str, DatasetSpec] = pinned()
    seed: int = pinned(0)
    chunk_bytes: Annotated[int, AtLeast(1024)] = pinned(262144)
    shuffle_chunks: bool = pinned(True)
    shuffle_documents: bool = pinned(True)
    exhausted: Literal["repeat", "stop", "redistribute"] = pinned("repeat")
    tokens_per_byte: dict[str, Annotated[float, Above(0)]] | None = pinned(None)
    on_error: OnError = pinned("raise", late=True)
    quarantine_budget: NotNegative = free(100, late=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerSpec(Spec):
    id: str = pinned("gpt2")
    special_tokens: SpecialTokens = pinned("eos")
    backend: str = free("auto")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipelineSpec(Spec):
    """``context_length``: inputs of a row, and as many labels: rows have one token more."""

    context_length: Annotated[int, AtLeast(2)] = pinned()
    packing: Packing = pinned("wrap")
    shuffle_buffer: NotNegative = pinned(1024)
    shuffle_seed: int = pinned(0)
    flush_every_k_chunks: NotNegative = pinned(8)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanesSpec(Spec):
    count: Positive = pinned(8)
    allow: LanesAllow = free("whole")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoaderSpec(Spec):
    runner: RunnerName = free("threads")
    workers: NotNegative | None = free(None)
    prefetch_batches: NotNegative = free(4)
    isolated: bool = free(False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSpec(Spec):
    dim: Positive = guarded(128)
    layers: Positive = guarded(4)
    heads: Positive = guarded(4)
    kv_heads: Positive | None = guarded(None)
    hidden_dim: Positive | None = guarded(None)
    vocab_size: Positive | None = guarded(None)
    rope_theta: Annotated[float, Above(0)] = guarded(10000.0)
    norm_eps: Annotated[float, AtLeast(0)] = guarded(1e-5)
    tie_embeddings: bool = guarded(True)
    init_from: str | None = guarded(None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerSpec(Spec):
    lr: Annotated[float, AtLeast(0)] = guarded(1e-3)
    betas: tuple[Share, Share] = guarded((0.9, 0.95))
    eps: Annotated[float, AtLeast(0)] = guarded(1e-8)
    weight_decay: Annotated[float, AtLeast(0)] = guarded(0.1)
    clip: Annotated[float, Above(0)] | None = guarded(1.0)
    schedule: Literal["constant", "cosine", "linear", "wsd"] = guarded("cosine")
    warmup_steps: NotNegative = guarded(10)
    warmup_tokens: Positive | None = guarded(None)
    decay_steps: NotNegative | None = guarded(None)
    decay_tokens: Positive | None = guarded(None)
    min_lr_ratio: Annotated[float, AtLeast(0)] = guarded(0.1)
    z_loss: Annotated[float, AtLeast(0)] = guarded(0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointSpec(Spec):
    every: Positive = free(50)
    keep_last: Positive = free(3)
    keep_every: Positive | None = free(None)
    background: bool = free(True)
    resume: Literal["latest", "last_good"] = free("latest")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalDatasetSpec(Spec):
    """Held-out text; never trained on, so changing it is free."""

    path: str = free()
    format: str | None = free(None)
    field: str = free("text")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainerSpec(Spec):
    steps: Positive = guarded()
    seed: int = guarded(0)
    microbatch_size: Positive = free(8)
    device: Literal["auto", "cpu", "cuda"] = free("auto")
    parallel: Literal["ddp", "fsdp", "hsdp"] = free("ddp")
    tensor_parallel: Positive = free(1)
    precision: Literal["float32", "bfloat16"] = guarded("float32")
    reduction: Literal["default", "canonical"] = guarded("default")
    canonical_block: Positive | None = guarded(None)
    activation_checkpointing: bool = free(False)
    compile: bool = free(False)
    torch_threads: Positive | None = free(None)
    nonfinite: Literal["stop", "skip", "rollback"] = guarded("stop")
    spike: Annotated[float, AtLeast(1.0)] | None = guarded(None)
    eval_every: Positive | None = free(None)
    eval_data: dict[str, EvalDatasetSpec] | None = free(None)
    eval_tokens: Positive = free(65536)
    log_every: Positive = free(1)
    tensorboard: bool = free(True)
    wandb: str | None = free(None)
    mlflow: str | None = free(None)
    process_group_timeout_s: Seconds = free(120.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TorchTitanSpec(Spec):
    """TorchTitan's trainer instead of our own: its ``--module``, ``--config`` and further arguments."""

    module: str = guarded("")
    config: str = guarded("")
    overrides: tuple[str, ...] = guarded(())


@dataclasses.dataclass(frozen=True, kw_only=True)
class ElasticSpec(Spec):
    nodes_min: Positive = free(1)
    nodes_max: Positive = free(8)
    procs_per_node: Positive = free(1)
    drain_s: Seconds = free(60.0)
    failure_budget: NotNegative = free(3)
    join_timeout_s: Seconds = free(300.0)
    heartbeat_s: Seconds = free(5.0)
    stall_s: Seconds = free(120.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SchedulerSpec(Spec):
    """Where the job runs. ``options`` belongs to the named scheduler, which types and checks it."""

    name: str = free("local")
    options: dict[str, Any] = free({})


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageSpec(Spec):
    """A stage of the user's own: ``call`` is "module:function"; ``inputs`` and ``outputs`` are paths."""

    call: str = free()
    inputs: tuple[str, ...] = free(())
    outputs: tuple[str, ...] = free(())
    options: dict[str, Any] = free({})


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagesSpec(Spec):
    """What a run consists of, in order; ``own`` are the stages that are not built in."""

    order: tuple[str, ...] = free(("train",))
    own: dict[str, StageSpec] = free({})


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSpec(Spec):
    """One experiment.

    Args:
        name: its directory is ``<runs>/<name>``.
        global_batch_size, nodes: sequences in one optimizer step over all ranks, and how many nodes this attempt starts with.
    """

    name: str = free()
    runs: str = free("runs")
    nodes: Positive = free(1)
    global_batch_size: Positive = pinned()
    data: DataSpec = pinned()
    tokenizer: TokenizerSpec = pinned(TokenizerSpec())
    pipeline: PipelineSpec = pinned()
    lanes: LanesSpec = pinned(LanesSpec())
    loader: LoaderSpec = free(LoaderSpec())
    model: ModelSpec = guarded(ModelSpec())
    optimizer: OptimizerSpec = guarded(OptimizerSpec())
    checkpoint: CheckpointSpec = free(CheckpointSpec())
    trainer: TrainerSpec = guarded()
    elastic: ElasticSpec = free(ElasticSpec())
    scheduler: SchedulerSpec = free(SchedulerSpec())
    stages: StagesSpec = free(StagesSpec(), late=True)
    torchtitan: TorchTitanSpec = guarded(TorchTitanSpec(), late=True)

    def check_nodes(self) -> None:
        """Raises ConfigError when ``nodes`` lies outside ``elastic.nodes_min..nodes_max``."""
        elastic = self.elastic
        if not elastic.nodes_min <= self.nodes <= elastic.nodes_max:
            raise ConfigError(
                f"nodes={self.nodes} is outside elastic.nodes_min..nodes_max = {elastic.nodes_min}..{elastic.nodes_max}",
                follows="the nodes would wait for a membership that can never form",
                remedy="choose another nodes=, or widen elastic.nodes_min / elastic.nodes_max",
            )

    def fields_of(self, kind: Kind) -> dict[str, object]:
        """The leaf values of one kind by dotted name, for the contract: ``{"data.seed": 0, ...}``."""
        return {
            name: value
            for name, field, value in _leaves(self, "")
            if field.metadata["kind"] == kind and _is_written(field, value)
        }

    def assumed(self, kind: Kind) -> dict[str, object]:
        """The default of each late field by dotted name: what a run does whose record does not name the field."""
        late = ((name, field) for name, field, _ in _leaves(self, "") if field.metadata["late"])
        return {name: field.default for name, field in late if field.metadata["kind"] == kind}


def _is_written(field: SpecField, value: object) -> bool:
    return not field.metadata["late"] or bool(value != field.default)


def _written(value: object) -> object:
    """Plain containers, without late fields that have their default."""
    if isinstance(value, Spec):
        fields = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))  # type: ignore[arg-type]
        return {field.name: _written(held) for field, held in fields if _is_written(field, held)}
    return {key: _written(item) for key, item in value.items()} if isinstance(value, dict) else value


def _leaves(spec: Spec, prefix: str) -> Iterator[tuple[str, SpecField, object]]:
    for field in dataclasses.fields(spec):  # type: ignore[arg-type]
        value, name = getattr(spec, field.name), prefix + field.name
        if isinstance(value, Spec):
            yield from _leaves(value, name + ".")
        elif isinstance(value, dict) and value and all(isinstance(v, Spec) for v in value.values()):
            for key, item in sorted(value.items()):
                yield from _leaves(item, f"{name}.{key}.")
        else:
            yield name, field, value


def _build(wanted: Any, value: object, at: str) -> object:
    if isinstance(wanted, type) and issubclass(wanted, Spec):
        return _build_spec(wanted, value, at)
    origin, args = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in args:
            return None
        (inner,) = (a for a in args if a is not type(None))
        return _build(inner, value, at)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise _wrong(at, value, "a mapping")
        return {str(key): _build(args[1], item, f"{at}.{key}") for key, item in value.items()}
    if origin is tuple:
        if not isinstance(value, (list, tuple)) or (args[-1] is not Ellipsis and len(value) != len(args)):
            raise _wrong(at, value, f"a list of {len(args)} values")
        kinds = [args[0]] * len(value) if args[-1] is Ellipsis else list(args)
        return tuple(_build(kind, item, f"{at}[{i}]") for i, (kind, item) in enumerate(zip(kinds, value, strict=True)))
    if wanted is Any or origin is Literal:  # choices are checked when the spec is made
        return value
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        raise _wrong(at, value, f"of type {wanted.__name__}")
    return value


def _build_spec(wanted: type[Spec], value: object, at: str) -> Spec:
    if isinstance(value, wanted):
        return value
    if not isinstance(value, Mapping):
        raise _wrong(at, value, "a mapping")
    hints = typing.get_type_hints(wanted)
    prefix = f"{at}." if at else ""
    for key in value:
        if key not in hints:
            raise ConfigError(
                f"{prefix}{key} is not a known field",
                follows="the setting would have no effect",
                remedy=nearest(str(key), hints),
            )
    fields = dataclasses.fields(wanted)  # type: ignore[arg-type]
    required = [f.name for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]
    missing = [f"{prefix}{name}" for name in required if name not in value]
    if missing:
        raise ConfigError(
            f"{', '.join(missing)} must be given",
            follows="there is no sensible default to run with",
            remedy=f"set {missing[0]}=VALUE",
        )
    try:
        return wanted(**{key: _build(hints[key], item, f"{prefix}{key}") for key, item in value.items()})
    except ConfigError as error:
        if at and not getattr(error, "__notes__", None):
            error.add_note(f"at {at}")
        raise


def _wrong(at: str, value: object, wanted: str) -> ConfigError:
    return ConfigError(f"{at}={value!r} is not {wanted}", remedy=f"give a value {wanted}")
