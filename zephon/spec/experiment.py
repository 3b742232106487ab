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
from typing import Annotated, Any, Literal

from zephon.errors import ConfigError
from zephon.spec.base import Kind, Spec, free, guarded, is_written, leaves, pinned
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
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetSpec(Spec):
    """``on_error``: what happens to a document that cannot be used; None follows ``data.on_error``. ``shards``, ``where`` and
    ``fraction`` select a part of the data. ``tokens`` names the tokenizer whose ids are stored in place of text, and
    ``revision`` the commit of a dataset on the Hugging Face Hub, which the first start resolves.
    """

    path: str = pinned()
    format: str | None = pinned(None)
    field: str = pinned("text")
    weight: Annotated[float, AtLeast(0)] = pinned(1.0)
    on_error: OnError | None = pinned(None, late=True)
    shards: str | None = pinned(None, late=True)
    where: str | None = pinned(None, late=True)
    fraction: tuple[float, float] | None = pinned(None, late=True)
    tokens: str | None = pinned(None, late=True)
    revision: str | None = pinned(None, late=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseSpec(Spec):
    """A stretch of the run with one mixture, or with a ``change`` from the mixture before to this one.

    ``until`` is where it ends, as "2000 steps" or "5e9 tokens" from the start of the run. Phases are in order of their ends,
    and the last one goes on until the run ends. Without a ``mixture`` the datasets' weights count.
    """

    until: str | None = pinned(None)
    mixture: dict[str, Annotated[float, Above(0)]] | None = pinned(None)
    change: Literal["at_once", "linear", "cosine"] = pinned("at_once")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ControllerSpec(Spec):
    """Who decides on new weights during the run: ``rule``, every so many steps, effective ``delay`` steps later."""

    rule: Literal["none", "odm", "ado"] = pinned("none", late=True)
    every: Positive = pinned(100, late=True)
    delay: Positive = pinned(100, late=True)
    least_share: Share = pinned(0.01, late=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSpec(Spec):
    """``quarantine_budget``: documents that a lane may drop before the run ends, where ``on_error`` is quarantine."""

    datasets: dict[str, DatasetSpec] = pinned()
    seed: int = pinned(0)
    chunk_bytes: Annotated[int, AtLeast(1024)] | None = pinned(None)
    shuffle_chunks: bool = pinned(True)
    shuffle_documents: bool = pinned(True)
    exhausted: Literal["repeat", "stop", "redistribute"] = pinned("repeat")
    tokens_per_byte: dict[str, Annotated[float, Above(0)]] | None = pinned(None)
    phases: dict[str, PhaseSpec] | None = pinned(None, late=True)
    controller: ControllerSpec = pinned(ControllerSpec(), late=True)
    decisions: str | None = pinned(None, late=True)
    identity: Literal["names", "content"] = pinned("names", late=True)
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
    shuffle_buffer: NotNegative = pinned(256)
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
    shards: str | None = free(None, late=True)
    where: str | None = free(None, late=True)
    fraction: tuple[float, float] | None = free(None, late=True)
    tokens: str | None = free(None, late=True)
    revision: str | None = free(None, late=True)


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
    in_place: bool = free(True)


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
            for name, field, value in leaves(self, "")
            if field.metadata["kind"] == kind and is_written(field, value)
        }

    def assumed(self, kind: Kind) -> dict[str, object]:
        """The default of each late field by dotted name: what a run does whose record does not name the field."""
        late = ((name, field) for name, field, _ in leaves(self, "") if field.metadata["late"])
        return {name: field.default for name, field in late if field.metadata["kind"] == kind}
