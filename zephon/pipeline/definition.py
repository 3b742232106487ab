"""A definition: ops over a source, as a frozen value that can be checked, described and fingerprinted. It runs nothing.

    definition.with_op(op)          another definition; this one stays as it is
    definition.describe()           all that defines the stream, as plain values
    definition.program()            what every lane runs
    definition.delivery()           what this rank delivers of it

`zephon.pipeline.pipeline.Pipeline` holds one and replaces it; `validate` and `explain` read it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, Self

from zephon.batch import SampleBatch
from zephon.cursor import VERSION, RankState, canonical, fingerprint_of
from zephon.engine.delivery import Delivery
from zephon.engine.measure import measure
from zephon.engine.program import Program
from zephon.engine.running import Engine, Settings
from zephon.errors import ConfigError, nearest
from zephon.io.cache import CacheOptions, cached
from zephon.ops.balance import EnsureMixture
from zephon.ops.chat import TokenizeChat
from zephon.ops.fields import extract_by_rule, extract_token_columns
from zephon.ops.op import AccumulatorOp, Op, StageOp
from zephon.ops.pack import Pack, PackFlat
from zephon.ops.post_packing import PostPackingStage
from zephon.ops.quarantine import QuarantinePolicy, quarantine_policy
from zephon.ops.shuffle import Shuffle
from zephon.ops.tokenize import Tokenize
from zephon.pipeline.columns import columns_of_stream
from zephon.pipeline.interval import FLUSH_EVERY, bytes_of_rows, chunks_an_interval, mean_chunk_bytes, shares_at_start
from zephon.pipeline.options import Options
from zephon.pipeline.order import check_order
from zephon.pipeline.ranks import Division, divide, lanes_must_be_named
from zephon.types import Address, Counts, Json, Sampled, Stage, TokenColumns
from zephon.work import Plan, WorkSource
from zephon.world import World


class Batching(NamedTuple):
    """What `Pipeline.batch` was given."""

    microbatch_size: int
    drop_last: bool


class BatchMap(NamedTuple):
    """A function on finished batches, with what it is in the fingerprint. ``parallelism`` has no effect."""

    fn: Callable[[SampleBatch], SampleBatch | None]
    identity: Json
    parallelism: int | None


class Graph(NamedTuple):
    """Where the ops run: stages on workers, accumulators in each lane's own thread."""

    stages: list[StageOp]
    accumulators: list[AccumulatorOp]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Definition:
    """A pipeline as a value.

    Args:
        source: what it reads.
        options: see `zephon.pipeline.options.Options`.
        ops: before batch, in order.
        batching: None until `with_batching`.
        batch_maps: after batch, in order.
        prefetch_chunks: how many chunks a lane may be ahead, where the user says so.
        measured: tokens a byte by dataset, where they are known already; else they are measured when they are needed.
    """

    source: WorkSource
    options: Options = dataclasses.field(default_factory=Options)
    ops: tuple[Op, ...] = ()
    batching: Batching | None = None
    batch_maps: tuple[BatchMap, ...] = ()
    prefetch_chunks: int | None = None
    measured: Counts | None = None

    def __repr__(self) -> str:
        ops = [op.name for op in self.ops] + ["batch"] * (self.batching is not None) + ["map_batch"] * len(self.batch_maps)
        return f"Definition({' -> '.join([', '.join(self.names), *ops])})"

    # ---- other definitions

    def with_op(self, op: Op) -> Self:
        """With one more op. Raises ConfigError for values that cannot work, and after batch."""
        self._refuse_after_batch(op.name)
        op.check()
        return dataclasses.replace(self, ops=(*self.ops, op))

    def with_batching(self, batching: Batching) -> Self:
        """With rows made into microbatches."""
        self._refuse_after_batch("batch")
        if batching.microbatch_size < 1:
            raise ConfigError(f"batch(microbatch_size={batching.microbatch_size}) is below 1", remedy="give at least 1")
        return dataclasses.replace(self, batching=batching)

    def with_batch_map(self, batch_map: BatchMap) -> Self:
        """With a function on each batch."""
        if self.batching is None:
            raise ConfigError("map_batch comes before batch", follows="there is no batch yet", remedy="put it after batch")
        return dataclasses.replace(self, batch_maps=(*self.batch_maps, batch_map))

    def with_prefetch(self, chunks: int) -> Self:
        """With a bound on the chunks that a lane may be ahead."""
        if chunks < 1:
            raise ConfigError(f"prefetch(buffer_size={chunks}) is below 1", remedy="give at least 1")
        return dataclasses.replace(self, prefetch_chunks=chunks)

    def with_options(self, changes: Mapping[str, Any]) -> Self:
        """With some options changed."""
        return dataclasses.replace(self, options=self.options.updated(changes))

    def calibrated(self, counts: Counts) -> Self:
        """With what each dataset's sample holds; only those that it does not name are measured, when they are needed."""
        return dataclasses.replace(self, measured={name: Sampled(*map(int, numbers)) for name, numbers in counts.items()})

    def _refuse_after_batch(self, name: str) -> None:
        if self.batching is not None:
            raise ConfigError(f"{name} comes after batch", follows="it would see batches", remedy=f"put {name} before batch")

    # ---- what it is

    @property
    def names(self) -> list[str]:
        """The datasets' names, in order."""
        return [dataset.name for dataset in self.source.datasets]

    @property
    def weights(self) -> list[Fraction] | None:
        """The source's mixture in the order of the datasets."""
        mixture = self.source.mixture
        return None if mixture is None else mixture.for_datasets(self.names)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of stored text in a chunk."""
        return self.source.chunk_bytes

    @property
    def required_batching(self) -> Batching:
        """Raises ConfigError where there is none."""
        if self.batching is None:
            raise ConfigError("the pipeline has no batch", remedy="end it with .batch(microbatch_size=8)")
        return self.batching

    @functools.cached_property
    def division(self) -> Division:
        """Which rank of how many this is for, looked up once. Raises ConfigError for options that contradict the ranks."""
        return divide(self.options)

    @property
    def world(self) -> World:
        """The division of the global batch. Raises ConfigError when the numbers do not fit each other."""
        options, size, division = self.options, self.required_batching.microbatch_size, self.division
        if options.canonical_replicas is None and division.dp_degree > 1 and not division.named:
            raise lanes_must_be_named(division, size)
        lanes = options.canonical_replicas or division.dp_degree
        return World(lanes, options.global_batch_size or size * lanes, division.dp_degree, options.lanes_allow)

    @property
    def own_lanes(self) -> list[int]:
        """The lanes that this rank reads, whole or in part."""
        return [share.lane for share in self.world.shares(self.division.dp_group_id)]

    @property
    def flush_every(self) -> int:
        """Chunks between sentinels; 0 when no op needs them."""
        reorders = any(isinstance(op, AccumulatorOp) and op.reorders for op in self.ops)
        wanted = self.options.flush_every_k_chunks
        if wanted == 0 and reorders:
            raise ConfigError(
                "flush_every_k_chunks=0 with an op that reorders",
                follows="a restart would have to replay the lane from its very beginning",
                remedy=f"leave it out for the default of {FLUSH_EVERY}, or give a number of chunks",
            )
        if not reorders:
            return 0
        return FLUSH_EVERY if wanted is None else wanted

    @property
    def packed_length(self) -> int | None:
        """Tokens of a packed row; None for documents."""
        return next((op.max_length for op in self.ops if isinstance(op, PackFlat)), None)

    @functools.cached_property
    def decode(self) -> Callable[[Sequence[int]], str] | None:
        """Token ids to text, of the op that tokenizes; None where none does."""
        return next((op.tokenizer.decode for op in self.ops if isinstance(op, (Tokenize, TokenizeChat))), None)

    @functools.cached_property
    def graph(self) -> Graph:
        """The ops by where they run. Raises ConfigError for an order that cannot work."""
        check_order(self.ops, self.names, mixed=self.source.mixture is not None or bool(self.source.phases))
        first = next((i for i, op in enumerate(self.ops) if isinstance(op, AccumulatorOp)), len(self.ops))
        stages = [op for op in self.ops[:first] if isinstance(op, StageOp)]
        in_lane = [PostPackingStage(op=op) if isinstance(op, StageOp) else op for op in self.ops[first:]]
        return Graph(stages, [op for op in in_lane if isinstance(op, AccumulatorOp)])

    @property
    def workers(self) -> int | None:
        """``max_workers``, or else the largest ``parallelism`` of a stage; None leaves it to the machine."""
        if self.options.max_workers is not None:
            return self.options.max_workers
        numbers = [getattr(op, "parallelism", None) for op in self.graph.stages]
        return max((number for number in numbers if number is not None), default=None)

    @property
    def quarantine(self) -> QuarantinePolicy:
        """Which documents go into quarantine, by dataset and stage."""
        own = [op.on_error for op in self.graph.stages]
        return quarantine_policy(self.options.on_error, self.names, own, self.options.quarantine_budget)

    # ---- what defines the stream

    def describe(self) -> Json:
        """All that defines the stream, as plain values; what the fingerprint is made from."""
        world, _ = self.world, self.graph  # also checks the order of the ops
        described: Json = {
            "version": VERSION,
            "source": self.source.describe(),
            "ops": {f"{i}.{op.name}": op.describe() for i, op in enumerate(self.ops)},
            "lanes": world.lanes,
            "global_batch_size": world.global_batch_size,
            "flush_every_k_chunks": self.flush_every,
            "chunks_an_interval": self.chunks_an_interval,
            "chunk_bytes": dict(zip(self.names, self.chunk_lengths, strict=True)),
            "tokens_per_byte": {name: list(numbers) for name, numbers in self.counts.items()},
        }
        if self.batch_maps:
            described["batch_maps"] = [batch_map.identity for batch_map in self.batch_maps]
        if self.options.on_error != "raise":
            described["on_error"] = self.options.on_error
        plain: Json = json.loads(canonical(described))
        return plain

    @functools.cached_property
    def stream(self) -> str:
        """`describe` in its canonical form: what a state carries to be recognized by."""
        return canonical(self.describe())

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of `stream`. Measures first when the mixture needs it."""
        return fingerprint_of(json.loads(self.stream))

    @functools.cached_property
    def counts(self) -> Counts:
        """What each dataset's sample holds: given, or measured when it is first asked for."""
        known, estimation = self.measured or {}, self.source.estimation
        if estimation is None:
            return known
        if all(name in known for name in self.names):
            return {name: known[name] for name in self.names}
        ops = self.graph.stages
        policy = dataclasses.replace(self.quarantine, budget=estimation.calibration_samples)
        stages = [*(op.stage() for op in ops), extract_token_columns]
        return {
            name: known.get(name) or measure(self.source, index, stages, policy, estimation.calibration_samples)
            for index, name in enumerate(self.names)
        }

    def locate(self, address: tuple[str, str, int]) -> tuple[int, int, int]:
        """(dataset, shard, row) by number of an address by name. Raises ConfigError for a name that does not exist."""
        name, shard, row = address
        if name not in self.names:
            raise ConfigError(f"{address} names no dataset", remedy=nearest(name, self.names))
        dataset = self.names.index(name)
        shards = self.source.datasets[dataset].shards
        if shard not in shards:
            raise ConfigError(f"dataset {name!r} has no shard {shard!r}", remedy=nearest(shard, shards))
        return dataset, shards.index(shard), int(row)

    def address(self, dataset: int, shard: int, row: int) -> Address:
        """The address by name of what `locate` gives numbers of."""
        return self.source.datasets[dataset].address(shard, row)

    # ---- what runs

    @functools.cached_property
    def plan(self) -> Plan:
        """Which chunk each lane reads at each position."""
        return self.source.plan(self.world.lanes, self.counts, self.batch_tokens)

    @property
    def batch_tokens(self) -> int | None:
        """Tokens of a global batch; None for documents."""
        return None if self.packed_length is None else self.packed_length * self.world.global_batch_size

    @functools.cached_property
    def chunk_lengths(self) -> list[int]:
        """Bytes of a chunk of each dataset, in order."""
        lanes, counts, batch_tokens = self.world.lanes, self.counts, self.batch_tokens
        return [self.source.chunk_bytes_of(index, lanes, counts, batch_tokens) for index in range(len(self.names))]

    @functools.cached_property
    def mean_chunk_bytes(self) -> int:
        """Bytes of a chunk, in the mean over the chunks of the mixture with which the run begins."""
        lengths = dict(zip(self.names, self.chunk_lengths, strict=True))
        return mean_chunk_bytes(shares_at_start(self.source), lengths, self.counts)

    @functools.cached_property
    def chunks_an_interval(self) -> int:
        """Chunks of a lane between two sentinels; 0 when no op needs them.

        Without ``flush_every_k_chunks`` an interval has at least the rows of each shuffle's buffer.
        """
        if not self.flush_every:
            return 0
        given, length = self.options.flush_every_k_chunks is not None, self.packed_length
        rows = max((op.buffer_size for op in self.ops if isinstance(op, Shuffle)), default=0)
        shares = shares_at_start(self.source)
        needed = 0 if given or length is None else bytes_of_rows(rows, length, shares, self.counts)
        return chunks_an_interval(self.flush_every, self.chunk_bytes, self.mean_chunk_bytes, needed)

    def program(self) -> Program:
        """What every lane runs, the same on every rank."""
        stages, accumulators = self.graph
        plan = self.plan
        extraction: list[Stage] = []
        if any(isinstance(op, (Pack, EnsureMixture)) for op in accumulators):
            rules = self.token_columns
            extraction = [functools.partial(extract_by_rule, rules) if rules else extract_token_columns]
        cache = CacheOptions.of(self.options.io_options)
        return Program(
            [cached(dataset, cache) for dataset in self.source.datasets],
            plan,
            [*(op.stage() for op in stages), *extraction],
            accumulators,
            self.chunks_an_interval or 1,
            self.quarantine,
            plan.mixture_at,
            [*(op.name for op in stages), *("columns" for _ in extraction)],
        )

    @functools.cached_property
    def token_columns(self) -> tuple[TokenColumns | None, ...]:
        """See `zephon.pipeline.columns`."""
        return columns_of_stream(self.source, self.ops, self.graph.stages)

    def delivery(self) -> Delivery:
        """What this rank takes out of its lanes, and how."""
        batching = self.required_batching
        pack = next((op for op in self.ops if isinstance(op, PackFlat)), None)
        return Delivery(
            world=self.world,
            rank=self.division.dp_group_id,
            microbatch_size=batching.microbatch_size,
            drop_last=batching.drop_last,
            names=self.names,
            length=self.packed_length,
            emit_positions=pack is not None and pack.emit_positions,
            sources=self.source.datasets,
            maps=[batch_map.fn for batch_map in self.batch_maps],
        )

    @functools.cached_property
    def finite_bytes(self) -> int | None:
        """Bytes of source that all ranks together read until the source ends; None where it never does."""
        plan = self.plan
        if plan.total is None:
            return None
        return -(-plan.total // max(1, plan.first_pass)) * sum(dataset.size for dataset in self.source.datasets)

    @property
    def looks_at_others(self) -> bool:
        """Whether this rank reads the other ranks' lanes too, so that all of them end at the same step."""
        return self.options.last_step == "same" and self.division.dp_degree > 1 and self.finite_bytes is not None

    def settings(self) -> Settings:
        """The performance settings of an engine."""
        options = self.options
        return Settings(
            runner=options.runner,
            workers=self.workers,
            prefetch_batches=options.prefetch_batches,
            prefetch_bytes=options.prefetch_bytes,
            ahead=self.prefetch_chunks,
            chunk_bytes=self.mean_chunk_bytes,
            looks_at_others=self.looks_at_others,
            counts_left=options.last_step != "own",  # else the loop ends where it wants, and counts from there
        )

    def engine(self, state: RankState) -> Engine:
        """What runs from a state on."""
        return Engine(self.program(), self.delivery(), state, self.settings())
