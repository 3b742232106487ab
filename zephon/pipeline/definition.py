"""The chain: ops over a source, as a value that can be checked, described and fingerprinted. It runs nothing."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Self

from zephon.batch import SampleBatch
from zephon.cursor import VERSION, canonical, fingerprint_of
from zephon.engine.delivery import Delivery
from zephon.engine.measure import count_sample
from zephon.engine.program import Program
from zephon.errors import ConfigError, nearest
from zephon.io.cache import CacheOptions, cached
from zephon.ops.balance import EnsureMixture
from zephon.ops.chat import TokenizeChat
from zephon.ops.fields import extract_token_columns
from zephon.ops.functions import identity_of
from zephon.ops.op import AccumulatorOp, Op, StageOp
from zephon.ops.pack import Pack, PackFlat, PackSequences
from zephon.ops.post_packing import PostPackingStage
from zephon.ops.quarantine import QuarantinePolicy, quarantine_policy
from zephon.ops.shuffle import Algorithm, Shuffle
from zephon.ops.tokenize import Tokenize
from zephon.ops.tokenizers import Tokenizer, load_tokenizer
from zephon.ops.transform import DecodeText, MapTransform, StatefulTransform
from zephon.pipeline.options import Options
from zephon.pipeline.order import check_order
from zephon.spec.fields import check_names
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
        self._prefetch: int | None = None
        self._batch_maps: list[tuple[Callable[[SampleBatch], SampleBatch | None], dict[str, Any]]] = []

    # ---- the chain

    def options(self, **changes: Any) -> Self:
        """Changes options; see `zephon.pipeline.options.Options`.

        The stream is defined by ``canonical_replicas`` (lanes), ``global_batch_size`` and ``flush_every_k_chunks`` alone;
        all others are performance and placement.
        """
        self._options = self._options.updated(changes)
        return self

    def decode_text(self, fields: Sequence[str] = ("text",), **options: Any) -> Self:
        """Bytes to str, in place.

        Args:
            fields: names, dotted for nested ones.
            encoding, errors: as of `bytes.decode`; "utf-8" and "strict".
            normalize_newlines: CR LF and CR become LF (True).
            lowercase: (False)
            on_error: "raise" or "quarantine", instead of what `options(on_error=...)` says for the dataset.
        """
        return self._add(_op(DecodeText, fields=(fields,) if isinstance(fields, str) else tuple(fields), **options))

    def map_transform(self, fn: Callable[[dict[str, Any]], dict[str, Any] | None], **options: Any) -> Self:
        """A document's dict to a new dict, or None to leave it out; before `batch` only.

        Before packing and shuffling it runs on workers, behind them in the lane's own thread. Behind `pack_flat` the dict
        is a packed row (``input_ids``, ``positions`` and what was packed beside them) and must keep its length.

        Args:
            fn: stateless; for the same document it must return the same result.
            drop_none: whether None leaves the document out (counted), or is an error.
            on_error: "raise" or "quarantine".
            version: stands for the function's source text in the fingerprint, where that says too little.
        """
        return self._add(_op(MapTransform, fn=fn, **options))

    def stateful_transform(
        self,
        name: str,
        *,
        init_state: Callable[[], Any],
        push: Callable[..., Any],
        **options: Any,
    ) -> Self:
        """User code with one state per lane, fresh behind each flush sentinel, so that it never has to be saved.

        Args:
            name: for errors and the fingerprint.
            init_state: makes a state.
            push: (state, list of `SampleRecord`) to (state, list of records or dicts to give out).
            flush: state to a list of what is still held; called at each sentinel and when ``should_flush`` says so.
            should_flush: state to bool, asked after each push.
            transform: dict to dict or None, applied to everything given out.
            version: as of `map_transform`.
        """
        return self._add(_op(StatefulTransform, label=name, init_state=init_state, push=push, **options))

    def tokenize(
        self, tokenizer: Tokenizer | None = None, tokenizer_id: str | None = None, *, field: str, **options: Any
    ) -> Self:
        """Text to ``input_ids``.

        Args:
            tokenizer: a loaded tokenizer, or
            tokenizer_id: "gpt2", "bytes" or the path of a tokenizer.json.
            field: the document's field, dotted for nested ones.
            missing_field: "error", or "skip" to leave such documents out (counted).
            max_length, truncation, split_long_samples: cut long documents, or split them; the two exclude each other.
            padding: to ``max_length``, for batches of documents that are not packed.
            add_attention_mask: ``attention_mask`` uint8 beside padded documents.
            special_tokens: "bos_eos", "bos", "eos", "none", "tokenizer_default".
            bos_token_id, eos_token_id: instead of the tokenizer's own.
            preserve_upstream_payload: keep the documents' other fields.
            on_error: "raise" or "quarantine".
        """
        return self._add(_op(Tokenize, tokenizer=_tokenizer("tokenize", tokenizer, tokenizer_id), field=field, **options))

    def tokenize_chat(
        self,
        tokenizer: Tokenizer | None = None,
        tokenizer_id: str | None = None,
        *,
        field: str = "messages",
        **options: Any,
    ) -> Self:
        """A list of messages to ``input_ids`` and an aligned, unshifted ``loss_mask`` (uint8, 1 where the model learns).

        Documents without any supervised token are left out and counted. See `zephon.ops.chat` for how texts are cut.

        Args:
            tokenizer, tokenizer_id: as of `tokenize`.
            field: the messages, each with ``role`` and ``content``.
            chat_template: a Jinja template; None takes the tokenizer's own.
            apply_chat_template: False puts the contents one behind the other as they are.
            span_source: "generation_tags" (``{% generation %}`` in the template), "prefix_difference" (what each assistant
                message adds to the text before it), or "auto" for the tags where the template has any.
            loss_scope: "all_assistant" (None is the same), "last_span", "after_last_user".
            chat_template_kwargs: further variables of the template.
            tools_field: the document's tool definitions, where there are any.
            max_length: longer documents are cut.
            mask_field_out: name of the mask.
            preserve_upstream_payload, on_error: as of `tokenize`.
        """
        chosen = _tokenizer("tokenize_chat", tokenizer, tokenizer_id)
        return self._add(_op(TokenizeChat, tokenizer=chosen, field=field, **options))

    def pack_flat(self, max_length: int, **options: Any) -> Self:
        """Documents into rows of exactly ``max_length`` tokens, with all fields that have one value a token beside them.

        Args:
            algorithm: "first_fit", "best_fit" (whole documents, padded), "wrap" (a stream that is cut, never padded),
                "best_fit_wrap" (the longest that fits, one split to fill each row).
            num_bins: open bins, or candidates of best_fit_wrap; 64.
            max_sequences_per_bin: documents of a row, at most.
            drop_oversized: documents longer than a row are left out and counted (None, True) or are an error (False);
                with the wrap algorithms they are split unless it is True.
            min_sequence_length: shorter documents are left out and counted.
            pad_token_id: 0; padding is known by position, never by id.
            emit_positions: whether batches have ``positions``.
            homogeneity: "none"; "full" keeps datasets apart, "group" groups of them.
            groups: {group: [dataset, ...]} or {dataset: group}.
        """
        return self._add(_op(PackFlat, max_length=max_length, **options))

    def pack_sequences(self, max_length: int, **options: Any) -> Self:
        """Documents that fit together, unpadded, as ``{"packed_samples": [payload, ...]}``.

        Args as of `pack_flat`, without ``pad_token_id`` and ``emit_positions``, and
            length_fn: payload to length; None counts ``input_ids``.
            pack_payloads: whole payloads, or with False only their ``input_ids``.
        """
        return self._add(_op(PackSequences, max_length=max_length, **options))

    def shuffle(self, buffer_size: int = 8192, *, seed: int = 0, algorithm: Algorithm = "streaming") -> Self:
        """Mixes the order of what passes, per lane, within each flush interval."""
        return self._add(Shuffle(buffer_size=buffer_size, seed=seed, algorithm=algorithm))

    def ensure_mixture(self, **options: Any) -> Self:
        """Reorders each lane within a bounded buffer towards the mixture.

        Args:
            max_buffer_size: elements that may wait (1000); None lets nothing wait and leaves out what is too much (counted).
            weight_by: "tokens", "samples", or "auto" for tokens where there are any.
            warn_tolerance: warn when a dataset's share of a flush interval is further off than this.
            mixture: instead of the source's.
        """
        return self._add(_op(EnsureMixture, **options))

    def prefetch(self, buffer_size: int = 1024, parallelism: int | None = None) -> Self:
        """How many chunks each lane may be ahead, within ``prefetch_bytes``; a performance setting at any place."""
        if buffer_size < 1:
            raise ConfigError(f"prefetch(buffer_size={buffer_size})", follows="nothing could be read", remedy="use at least 1")
        self._prefetch = buffer_size
        if parallelism is not None:
            self._options = self._options.updated({"max_workers": parallelism})
        return self

    def batch(self, microbatch_size: int, *, drop_last: bool = True) -> Self:
        """Rows of one lane into microbatches; only `map_batch` may follow."""
        self._before_batch("batch")
        if microbatch_size < 1:
            raise ConfigError(f"microbatch_size={microbatch_size}", follows="batches would be empty", remedy="use at least 1")
        self._batching = _Batching(microbatch_size, drop_last)
        return self

    def map_batch(
        self,
        fn: Callable[[SampleBatch], SampleBatch | None],
        *,
        version: str | None = None,
        parallelism: int | None = None,
    ) -> Self:
        """A batch to a batch; behind `batch` only.

        None takes the batch out of training: it is delivered with ``real_rows`` 0, so that all ranks still run the same
        number of forwards.
        """
        if self._batching is None:
            raise ConfigError("map_batch comes before batch", follows="there is no batch yet", remedy="put it behind batch")
        self._batch_maps.append((fn, identity_of(fn, version, where="map_batch")))
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
        world, _ = self.world, self._split()  # also checks the order of the ops
        described: dict[str, Any] = json.loads(
            canonical(
                {
                    "version": VERSION,
                    "source": self._source.describe(),
                    "ops": {f"{i}.{op.name}": op.describe() for i, op in enumerate(self._ops)},
                    **({"batch_maps": [identity for _, identity in self._batch_maps]} if self._batch_maps else {}),
                    **({"on_error": self._options.on_error} if self._options.on_error != "raise" else {}),
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
        """Stages for workers, and all that runs in the lane's thread."""
        check_order(self._ops, [dataset.name for dataset in self._source.datasets], self._weights())
        first = next((i for i, op in enumerate(self._ops) if isinstance(op, AccumulatorOp)), len(self._ops))
        stages = [op for op in self._ops[:first] if isinstance(op, StageOp)]
        late = [PostPackingStage(op=op) if isinstance(op, StageOp) else op for op in self._ops[first:]]
        return stages, [op for op in late if isinstance(op, AccumulatorOp)]

    def _weights(self) -> list[Fraction] | None:
        mixture = getattr(self._source, "mixture", None)
        return None if mixture is None else mixture.for_datasets([dataset.name for dataset in self._source.datasets])

    @property
    def _workers(self) -> int | None:
        """``max_workers``, or else the largest ``parallelism`` that an op was given; None leaves it to the machine."""
        asked = [getattr(op, "parallelism", None) for op in self._split()[0]]
        return self._options.max_workers if self._options.max_workers is not None else max(filter(None, asked), default=None)

    def _guard(self, stages: Sequence[StageOp]) -> QuarantinePolicy:
        names = [dataset.name for dataset in self._source.datasets]
        return quarantine_policy(self._options.on_error, names, [op.on_error for op in stages], self._options.quarantine_budget)

    def _locate(self, document: tuple[str, str, int]) -> tuple[int, int, int]:
        """(dataset, shard, row) of an address by name."""
        name, shard, row = document
        names = [dataset.name for dataset in self._source.datasets]
        if name not in names:
            raise ConfigError(f"{document} names no dataset", follows="nothing would be left out", remedy=nearest(name, names))
        shards = self._source.datasets[names.index(name)].shards
        if shard not in shards:
            raise ConfigError(
                f"dataset {name!r} has no shard {shard!r}", follows="nothing would be left out", remedy=nearest(shard, shards)
            )
        return names.index(name), shards.index(shard), int(row)

    def _measure(self) -> Counts:
        estimation = self._source.estimation
        if estimation is None:
            return {}
        ops = self._split()[0]
        guard = dataclasses.replace(self._guard(ops), budget=estimation.calibration_samples)
        stages = [*(op.stage() for op in ops), extract_token_columns]
        return {
            dataset.name: count_sample(self._source, index, stages, guard, estimation.calibration_samples)
            for index, dataset in enumerate(self._source.datasets)
        }

    def _program(self) -> Program:
        stages, accumulators = self._split()
        world = self.world
        plan = self._source.plan(world.lanes, self.calibrate())
        lift = [extract_token_columns] if any(isinstance(op, (Pack, EnsureMixture)) for op in accumulators) else []
        cache = CacheOptions.of(self._options.io_options)
        return Program(
            [cached(dataset, cache) for dataset in self._source.datasets],
            plan,
            [*(op.stage() for op in stages), *lift],
            accumulators,
            self.flush_every or 1,
            self._guard(stages),
            self._weights(),
            [*(op.name for op in stages), *("columns" for _ in lift)],
        )

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
            sources=self._source.datasets,
            maps=[fn for fn, _ in self._batch_maps],
        )


def _op(kind: type[Op], **options: Any) -> Op:
    check_names(options, [field.name for field in dataclasses.fields(kind)], kind.name)
    return kind(**options)


def _tokenizer(op: str, tokenizer: Tokenizer | None, tokenizer_id: str | None) -> Tokenizer:
    if (tokenizer is None) == (tokenizer_id is None):
        raise ConfigError(
            f"{op} needs either tokenizer or tokenizer_id",
            follows="no text could be tokenized",
            remedy="give exactly one",
        )
    return tokenizer if tokenizer is not None else load_tokenizer(str(tokenizer_id))
