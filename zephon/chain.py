"""The chain: ops over a source, as a value that can be checked, described and fingerprinted. It runs nothing."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Self

from zephon.engine.delivery import Delivery
from zephon.engine.program import Program
from zephon.errors import ConfigError, nearest
from zephon.io import read
from zephon.ops.op import AccumulatorOp, Op, StageOp, run_stages
from zephon.ops.pack import PackFlat
from zephon.ops.shuffle import Shuffle
from zephon.ops.tokenize import Tokenize
from zephon.ops.tokenizers import Tokenizer, load_tokenizer
from zephon.options import Options
from zephon.state import VERSION, canonical, fingerprint_of
from zephon.types import Columns, Ragged
from zephon.work import WorkSource
from zephon.work.tokens import Counts
from zephon.world import World


@dataclasses.dataclass(frozen=True)
class _Batching:
    microbatch_size: int
    drop_last: bool


class Chain:
    """Each method adds an op and returns the pipeline itself."""

    def __init__(self, source: WorkSource) -> None:
        self._source = source
        self._ops: list[Op] = []
        self._batching: _Batching | None = None
        self._options = Options()
        self._measured: Counts | None = None

    # ---- the chain

    def options(self, **changes: Any) -> Self:
        """Changes options; see `zephon.options.Options`.

        The stream is defined by ``canonical_replicas`` (lanes), ``global_batch_size`` and ``flush_every_k_chunks`` alone;
        all others are performance and placement.
        """
        self._options = self._options.updated(changes)
        return self

    def tokenize(
        self, tokenizer: Tokenizer | None = None, tokenizer_id: str | None = None, *, field: str, **options: Any
    ) -> Self:
        """Text to ``input_ids``.

        Args:
            tokenizer: a loaded tokenizer, or
            tokenizer_id: "gpt2", "bytes" or the path of a tokenizer.json.
            field: the document's field, dotted for nested ones.
            missing_field: "error", or "skip" to leave such documents out.
            max_length, truncation, split_long_samples: cut long documents, or split them; the two exclude each other.
            special_tokens: "bos_eos", "bos", "eos", "none", "tokenizer_default".
            bos_token_id, eos_token_id: instead of the tokenizer's own.
            preserve_upstream_payload: keep the documents' other fields.
        """
        if (tokenizer is None) == (tokenizer_id is None):
            raise ConfigError(
                "tokenize needs either tokenizer or tokenizer_id",
                follows="no text could be tokenized",
                remedy="give exactly one",
            )
        chosen = tokenizer if tokenizer is not None else load_tokenizer(str(tokenizer_id))
        return self._add(_op(Tokenize, tokenizer=chosen, field=field, **options))

    def pack_flat(self, max_length: int, **options: Any) -> Self:
        """Documents into rows of exactly ``max_length`` tokens; see `zephon.ops.pack.PackFlat`."""
        return self._add(_op(PackFlat, max_length=max_length, **options))

    def shuffle(self, buffer_size: int = 8192, *, seed: int = 0, algorithm: str = "streaming") -> Self:
        """Mixes the order of what passes, per lane, within each flush interval."""
        return self._add(Shuffle(buffer_size=buffer_size, seed=seed, algorithm=algorithm))

    def batch(self, microbatch_size: int, *, drop_last: bool = True) -> Self:
        """Rows of one lane into microbatches; the last op."""
        self._before_batch("batch")
        if microbatch_size < 1:
            raise ConfigError(f"microbatch_size={microbatch_size}", follows="batches would be empty", remedy="use at least 1")
        self._batching = _Batching(microbatch_size, drop_last)
        return self

    # ---- what it is

    @property
    def world(self) -> World:
        """The division of the global batch. Raises ConfigError when the numbers do not fit each other."""
        options = self._options
        lanes = options.canonical_replicas or options.dp_degree
        batching = self._need_batching()
        size = options.global_batch_size or batching.microbatch_size * lanes
        return World(lanes, size, options.dp_degree, options.lanes_allow)

    @property
    def flush_every(self) -> int:
        """Chunks between sentinels; 0 when no op needs them."""
        reorders = any(isinstance(op, AccumulatorOp) and op.reorders for op in self._ops)
        wanted = self._options.flush_every_k_chunks
        if wanted == 0 and reorders:
            raise ConfigError(
                "flush_every_k_chunks=0 with an op that reorders",
                follows="a restart would have to replay the lane from its very beginning",
                remedy="leave it out for the default of 8, or give a number of chunks",
            )
        if not reorders:
            return 0
        return 8 if wanted is None else wanted

    def describe(self) -> dict[str, Any]:
        """All that defines the stream, as plain values; what the fingerprint is made from."""
        world = self.world
        described: dict[str, Any] = json.loads(
            canonical(
                {
                    "version": VERSION,
                    "source": self._source.describe(),
                    "ops": {f"{i}.{op.name}": op.describe() for i, op in enumerate(self._ops)},
                    "lanes": world.lanes,
                    "global_batch_size": world.global_batch_size,
                    "flush_every_k_chunks": self.flush_every,
                    "tokens_per_byte": {name: list(pair) for name, pair in self.calibrate().items()},
                }
            )
        )
        return described

    @property
    def fingerprint(self) -> str:
        """SHA-256 of `describe`. Calibrates first when the mixture needs it."""
        return fingerprint_of(self.describe())

    def calibrate(self, counts: Counts | None = None) -> Counts:
        """Tokens and bytes of each dataset's sample: measured now, or given from the run directory."""
        if counts is not None:
            self._measured = {name: (int(pair[0]), int(pair[1])) for name, pair in counts.items()}
        if self._measured is None:
            self._measured = self._measure()
        return self._measured

    # ---- inside

    def _add(self, op: Op) -> Self:
        self._before_batch(op.name)
        op.check()
        self._ops.append(op)
        return self

    def _before_batch(self, name: str) -> None:
        if self._batching is not None:
            raise ConfigError(f"{name} comes after batch", follows="it would see batches", remedy=f"put {name} before batch")

    def _need_batching(self) -> _Batching:
        if self._batching is None:
            raise ConfigError(
                "the pipeline has no batch",
                follows="nothing could be delivered",
                remedy="end it with .batch(microbatch_size=8)",
            )
        return self._batching

    def _split(self) -> tuple[list[StageOp], list[AccumulatorOp]]:
        first = next((i for i, op in enumerate(self._ops) if isinstance(op, AccumulatorOp)), len(self._ops))
        late = [op for op in self._ops[first:] if not isinstance(op, AccumulatorOp)]
        if late:
            raise ConfigError(
                f"{late[0].name} comes after {self._ops[first].name}",
                follows="it would see packed rows instead of documents",
                remedy=f"put {late[0].name} before {self._ops[first].name}",
            )
        stages = [op for op in self._ops[:first] if isinstance(op, StageOp)]
        return stages, [op for op in self._ops[first:] if isinstance(op, AccumulatorOp)]

    def _measure(self) -> Counts:
        estimation = self._source.estimation
        if estimation is None:
            return {}
        stages = [op.stage() for op in self._split()[0]]
        return {
            dataset.name: _count(self._source, index, stages, estimation.calibration_samples)
            for index, dataset in enumerate(self._source.datasets)
        }

    def _program(self) -> Program:
        stages, accumulators = self._split()
        world = self.world
        plan = self._source.plan(world.lanes, self.calibrate())
        return Program(self._source.datasets, plan, [op.stage() for op in stages], accumulators, self.flush_every or 1)

    def _delivery(self) -> Delivery:
        batching = self._need_batching()
        pack = next((op for op in self._ops if isinstance(op, PackFlat)), None)
        return Delivery(
            world=self.world,
            rank=self._options.dp_group_id,
            microbatch_size=batching.microbatch_size,
            drop_last=batching.drop_last,
            names=[dataset.name for dataset in self._source.datasets],
            length=pack.max_length if pack else None,
            emit_positions=pack.emit_positions if pack else False,
        )


def _op(kind: type[Op], **options: Any) -> Op:
    known = [field.name for field in dataclasses.fields(kind)]
    for name in options:
        if name not in known:
            raise ConfigError(
                f"{kind.name} has no option {name!r}", follows="it would have no effect", remedy=nearest(name, known)
            )
    return kind(**options)


def _count(source: WorkSource, index: int, stages: list[Any], most: int) -> tuple[int, int]:
    tokens = size = documents = 0
    for chunk in source.sample(index):
        columns: Columns = run_stages(stages, read(source.datasets[index], chunk))
        ids = columns.fields.get("input_ids")
        tokens += len(ids.values) if isinstance(ids, Ragged) else 0
        size += sum(piece.stop - piece.start for piece in chunk.pieces)
        documents += len(columns)
        if documents >= most:
            break
    return tokens, size
