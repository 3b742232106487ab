"""Chain: what all methods that build a pipeline share, the options, and the end of the chain.

Each method replaces the definition by another one and returns the pipeline itself. An unknown keyword is an error that names
the nearest known one. The ops are in `zephon.pipeline.document_ops` and `zephon.pipeline.lane_ops`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, Self

from zephon.batch import SampleBatch
from zephon.errors import ConfigError
from zephon.ops.functions import identity_of
from zephon.ops.op import Op
from zephon.pipeline.definition import Batching, BatchMap, Definition
from zephon.pipeline.options import AutoValidation, IoOptions, LastStep, MappingStrategy
from zephon.spec.fields import LanesAllow, OnError, RunnerName, named_options
from zephon.work import WorkSource


class Unchanged(Enum):
    """Stands for "as it was" where None means something."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged.UNCHANGED


class Chain:
    """Holds a definition; see the module's text."""

    def __init__(self, source: WorkSource) -> None:
        self._definition = Definition(source=source)

    def _add(self, op: Op) -> Self:
        self._definition = self._definition.with_op(op)
        return self

    @named_options
    def options(
        self,
        *,
        runner: RunnerName | Unchanged = UNCHANGED,
        max_workers: int | Unchanged | None = UNCHANGED,
        deterministic: bool | Unchanged = UNCHANGED,
        isolated: bool | Unchanged = UNCHANGED,
        prefetch_batches: int | Unchanged = UNCHANGED,
        prefetch_bytes: int | Unchanged = UNCHANGED,
        flush_every_k_chunks: int | Unchanged | None = UNCHANGED,
        io_options: IoOptions | Unchanged = UNCHANGED,
        dp_degree: int | Unchanged | None = UNCHANGED,
        dp_group_id: int | Unchanged | None = UNCHANGED,
        world_size: int | Unchanged | None = UNCHANGED,
        global_rank: int | Unchanged | None = UNCHANGED,
        lanes: int | Unchanged | None = UNCHANGED,
        canonical_replicas: int | Unchanged | None = UNCHANGED,
        global_batch_size: int | Unchanged | None = UNCHANGED,
        lanes_allow: LanesAllow | Unchanged = UNCHANGED,
        mapping_strategy: MappingStrategy | Unchanged = UNCHANGED,
        run_id: str | Unchanged | None = UNCHANGED,
        auto_validation: AutoValidation | Unchanged = UNCHANGED,
        on_error: OnError | Mapping[str, OnError] | Unchanged = UNCHANGED,
        quarantine_budget: int | Unchanged = UNCHANGED,
        last_step: LastStep | Unchanged = UNCHANGED,
    ) -> Self:
        """Changes the options that are named; the others stay as they were.

        ``lanes``, ``global_batch_size``, ``flush_every_k_chunks`` and ``on_error`` define the stream; all
        others are performance and placement. Defaults in parentheses.

        Args:
            runner: "threads" (the default), "process" for slow Python in `map_transform`, "inline" for debugging.
            max_workers: threads or processes for the stages (None: by the machine's cores); 0 runs inline.
            deterministic: (True), the only value: the order costs nothing, so that there is no faster one to choose.
            isolated: the whole engine in one child process (False).
            prefetch_batches: batches made ahead (8).
            prefetch_bytes: bound on all chunks that are under way or ready (256 MiB).
            flush_every_k_chunks: chunks of a lane between two sentinels (None: none where no op reorders, else 8 or as many as
                the rows of a shuffle's buffer come from); as many times more where chunks are shorter than ``chunk_bytes``.
            io_options: ``{"cache": {"enabled": ..., "root": ..., "limit_bytes": ...}}``, a disk cache for far shards.
            dp_degree: data-parallel size (None: all ranks that exist, as an initialised process group says, else RANK and
                WORLD_SIZE, else ``world_size``, else 1). Fewer where tensor, pipeline and context peers read the same.
            dp_group_id: this rank in it (None: of the ranks that exist, else 0).
            world_size, global_rank: the ranks, where neither a process group nor the environment knows them (None).
            lanes: number of logical streams, the same for every number of ranks (None: ``dp_degree`` where that is given;
                refused where several ranks exist and neither is).
            canonical_replicas: another name for ``lanes``.
            global_batch_size: sequences of an optimizer step (None: microbatch size times lanes).
            lanes_allow: "whole" (the default), "shared", "uneven": which divisions of lanes over ranks are accepted.
            mapping_strategy: "contiguous", the only value: every rank takes contiguous slots.
            run_id: (None). No effect: a state is recognized by its fingerprint, not by a name.
            auto_validation: "strict" or "warn" look at a sample before the first step; "off" (the default) does not.
            on_error: "raise" (the default) or "quarantine", for all datasets or by dataset name.
            quarantine_budget: documents that a lane may quarantine before the run ends (100).
            last_step: where finite data ends on several ranks. "same": at one step on all of them, since each reads the lanes
                of the others as well and counts. "own": where this rank's lanes end; for loops whose ranks agree on the end.
                "auto" (the default): at one step, which ranks tell each other through the store of torch's process group;
                without one it is "own", with a warning where other ranks exist.
        """
        changes = {name: value for name, value in locals().items() if name != "self" and value is not UNCHANGED}
        if "lanes" in changes:
            lanes = changes.pop("lanes")
            if changes.setdefault("canonical_replicas", lanes) != lanes:
                raise ConfigError(
                    f"options(lanes={lanes}, canonical_replicas={canonical_replicas}): two names for one number",
                    remedy="give lanes alone",
                )
        self._definition = self._definition.with_options(changes)
        return self

    @named_options
    def prefetch(self, buffer_size: int = 1024, parallelism: int | None = None) -> Self:
        """How far each lane may read ahead; a performance setting at any place of the chain.

        Args:
            buffer_size: chunks, within ``prefetch_bytes``.
            parallelism: the same as ``options(max_workers=...)``.
        """
        self._definition = self._definition.with_prefetch(buffer_size)
        return self if parallelism is None else self.options(max_workers=parallelism)

    @named_options
    def batch(self, microbatch_size: int, *, drop_last: bool = True) -> Self:
        """Rows of one lane into microbatches; only `map_batch` may follow.

        Args:
            microbatch_size: rows of one forward, at most.
            drop_last: whether the lanes' incomplete last step is dropped.
        """
        self._definition = self._definition.with_batching(Batching(microbatch_size, drop_last))
        return self

    @named_options
    def map_batch(
        self,
        fn: Callable[[SampleBatch], SampleBatch | None],
        *,
        version: str | None = None,
        parallelism: int | None = None,
    ) -> Self:
        """A batch to a batch; after `batch` only.

        None takes the batch out of training: it is delivered with ``real_rows`` 0, so that all ranks still run the same
        number of forwards.

        Args:
            fn: stateless; for the same batch it must return the same result.
            version: as of `map_transform`.
            parallelism: no effect: batches are made one after the other, in the order of delivery.
        """
        identity = identity_of(fn, version, where="map_batch")
        self._definition = self._definition.with_batch_map(BatchMap(fn, identity, parallelism))
        return self
